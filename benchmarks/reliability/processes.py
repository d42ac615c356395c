"""Small training runs in forked processes, and whether two runs ended alike."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.models import ModelConfig
from statetrack.tasks import make_task
from statetrack.training import Run, RunConfig, TrainingConfig, train
from statetrack.training.run_folder import RunFolder

# some ten milliseconds a step; checkpoints at steps 5, 10 and 12, the last
CONFIG = RunConfig(
    make_task("parity"),
    ModelConfig(
        vocab_size=3,
        hidden_size=8,
        num_layers=2,
        mixer=(DeltaNetConfig(num_heads=2), MambaConfig()),
        mlp="none",
    ),
    TrainingConfig(
        steps=12,
        batch_size=4,
        max_length=12,
        log_every=1,
        checkpoint_every=5,
        eval_every=4,
        eval_samples=8,
        eval_lengths=("13-16",),
        saturation=0.1,
    ),
)


def prepare() -> None:
    """Load before any fork what torch loads late; one thread, so that numbers are repeatable."""
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)])


def start(work: Callable[[], Any]) -> int:
    """Begin work in a forked process, whose exit code is as on the command line."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def end(child: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def go_on(folder: Path, config: RunConfig = CONFIG) -> None:
    """Start a run, or resume the one that is there."""
    train(config, folder, resume=(folder / "config.json").exists())


def rows(run: RunFolder) -> list[dict[str, Any]]:
    """The metrics without what differs from one time to the next."""
    return [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in run.metrics()]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: the content of files, None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def difference(
    folder: Path, undisturbed: Path, open_run: Callable[[Path], RunFolder] = Run.open
) -> str | None:
    """What of a run is not as in the undisturbed one: files, weights, moments, metrics."""
    runs = [open_run(path) for path in (folder, undisturbed)]
    if runs[0].config != runs[1].config:
        return "another configuration"
    one, two = snapshot(folder), snapshot(undisturbed)
    if one.keys() != two.keys():
        return f"files {sorted(one.keys() ^ two.keys())} are in one folder only"
    for name in sorted(one):
        if name.startswith(("checkpoints/", "model/")) and one[name] != two[name]:
            return f"{name} is not the same"
    if rows(runs[0]) != rows(runs[1]):
        return f"the metrics differ: steps {[row['step'] for row in runs[0].metrics()]}"
    return None


def markdown(columns: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *body]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def report(text: str, target: str | None) -> None:
    """Print for people: to standard output, unless JSON is going there."""
    print(text, file=sys.stderr if target == "-" else sys.stdout)
