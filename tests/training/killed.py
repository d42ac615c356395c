"""A program that trains and is killed (SIGKILL, which nothing can catch) at exact moments.

    python killed.py CONFIG FOLDER    makes FOLDER/<moment> for every moment below

Each run is a process of its own, forked from this one so that torch is loaded only once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from statetrack.training import Progress, Run, RunConfig, read_config, train


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(operation: str, name: str) -> None:
    """Die when os.<operation> is about to act on a file called `name`."""
    act = getattr(os, operation)

    def guarded(*args: Any, **options: Any) -> Any:
        if Path(args[-1]).name == name:
            die()
        return act(*args, **options)

    setattr(os, operation, guarded)


def at_step(config: RunConfig, folder: Path, step: int, resume: bool = False) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == step:
            die()

    train(config, folder, resume=resume, on_progress=stop)


def in_a_line(config: RunConfig, folder: Path) -> None:
    log = Run.log

    def half(run: Run, row: dict[str, Any]) -> None:
        if row["step"] < 19:
            return log(run, row)
        with run.metrics_file.open("a") as file:
            file.write(json.dumps(row)[:30])
        return die()

    Run.log = half  # type: ignore[method-assign]
    train(config, folder)


def at_file(operation: str, name: str) -> Callable[[RunConfig, Path], None]:
    def run(config: RunConfig, folder: Path) -> None:
        before(operation, name)
        train(config, folder)

    return run


def while_resuming(config: RunConfig, folder: Path) -> None:
    """Called again for a run that was killed at step 19."""
    before("replace", "metrics.jsonl")
    train(config, folder, resume=True)


# checkpoints are due at steps 8, 16, 24 and 30, the last
MOMENTS: dict[str, list[Callable[[RunConfig, Path], None]]] = {
    "before there is a configuration": [at_file("replace", "config.json")],
    "before the first checkpoint": [lambda c, f: at_step(c, f, 5)],
    "between checkpoints": [lambda c, f: at_step(c, f, 19)],
    "in a line of metrics": [in_a_line],
    "before a tensor file is in place": [at_file("replace", "step-00000016.safetensors")],
    "between a tensor file and its json": [at_file("replace", "step-00000016.json")],
    "before an old checkpoint is dropped": [at_file("unlink", "step-00000008.json")],
    "while an old checkpoint is dropped": [at_file("unlink", "step-00000008.safetensors")],
    "before the last checkpoint": [at_file("replace", "step-00000030.safetensors")],
    "while resuming": [lambda c, f: at_step(c, f, 19), while_resuming],
    "twice": [lambda c, f: at_step(c, f, 11), lambda c, f: at_step(c, f, 27, resume=True)],
}


def main() -> None:
    config, folder = read_config(Path(sys.argv[1])), Path(sys.argv[2])
    torch.optim.AdamW([torch.zeros(1)])  # what torch loads late is loaded before the forks
    for name, attempts in MOMENTS.items():
        for attempt in attempts:
            child = os.fork()
            if child == 0:
                attempt(config, folder / name)
                os._exit(0)  # not reached
            status = os.waitpid(child, 0)[1]
            if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
                sys.exit(f"{name}: ended with status {status}, not by SIGKILL")


if __name__ == "__main__":
    main()
