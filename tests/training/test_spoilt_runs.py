"""Run folders in which something has been damaged or exchanged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from statetrack import cli
from statetrack.training import Run, train
from tests.training.refusal import Refused
from tests.training.small import small_config


def truncate(run: Run) -> None:
    file = run.checkpoint_file(4)
    file.write_bytes(file.read_bytes()[:-10])


def garble(run: Run) -> None:
    file = run.checkpoint_file(4)
    file.write_bytes(b"x" * file.stat().st_size)


def remove(run: Run) -> None:
    run.checkpoint_file(4).unlink()


def replace_by(run: Run, data: bytes) -> None:
    """Other tensors, and a byte count that is right for them."""
    file = run.checkpoint_file(4)
    file.write_bytes(data)
    about = {"schema": 1, "step": 4, "bytes": len(data)}
    file.with_suffix(".json").write_text(json.dumps(about))


def foreign(**options: Any) -> Callable[[Run], None]:
    def spoil(run: Run) -> None:
        other = train(small_config(**options), run.folder.parent / "other")
        replace_by(run, other.checkpoint_file(4).read_bytes())
        shutil.rmtree(other.folder)

    return spoil


def about(text: str) -> Callable[[Run], None]:
    return lambda run: run.checkpoint_file(4).with_suffix(".json").write_text(text) and None


def without_moments(run: Run) -> None:
    tensors = {k: t for k, t in run.load()[1].items() if k.startswith("model.")}
    replace_by(run, safetensors.torch.save(tensors))


FILE = "checkpoints/step-00000004"
SPOILS = [
    pytest.param(truncate, [FILE, "truncated", "bytes"], id="truncated"),
    pytest.param(garble, [FILE, "not a readable checkpoint"], id="garbled"),
    pytest.param(remove, [FILE, "not a readable checkpoint"], id="removed"),
    pytest.param(foreign(mixer="mamba"), ["run", "tensor model.blocks.0.mixer."], id="mixer"),
    pytest.param(
        foreign(model={"hidden_size": 16}),
        ["run", "embedding.weight", "[3, 16]", "[3, 8]"],
        id="size",
    ),
    pytest.param(foreign(task="S3"), ["run", "embedding.weight", "[13, 8]", "[3, 8]"], id="task"),
    pytest.param(about("{"), [f"{FILE}.json"], id="json cut"),
    pytest.param(about("[]"), [f"{FILE}.json"], id="json list"),
    pytest.param(about('{"schema": 1}'), [FILE, "bytes"], id="json empty"),
]


@pytest.mark.parametrize(("spoil", "says"), SPOILS)
def test_spoilt_checkpoints(
    spoil: Callable[[Run], None], says: list[str], refused: Refused, run_folder: Path
) -> None:
    spoil(Run.open(run_folder))
    refused("eval", "run", "--lengths=5", says=says)
    refused("train", "--resume=run", says=says)


def test_another_file_among_the_checkpoints_is_none(run_folder: Path) -> None:
    (run_folder / "checkpoints" / "step-best.json").write_text("{}")
    assert Run.open(run_folder).checkpoint_steps() == [2, 4]
    assert cli.main(["eval", str(run_folder), "--lengths=5", "--samples=4"]) == 0


def test_a_checkpoint_of_another_schema(refused: Refused, run_folder: Path) -> None:
    size = Run.open(run_folder).checkpoint_file(4).stat().st_size
    about(json.dumps({"schema": 2, "step": 4, "bytes": size}))(Run.open(run_folder))
    refused("eval", "run", "--lengths=5", says=[f"{FILE}.json", "schema 2"])
    refused("train", "--resume=run", says=[f"{FILE}.json", "schema 2"])


def test_a_checkpoint_without_the_optimiser_cannot_be_resumed(
    refused: Refused, run_folder: Path
) -> None:
    without_moments(Run.open(run_folder))
    refused("train", "--resume=run", says=["run", "lacks tensor optimizer.exp_avg"])


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe\n", b"5\n", b"{}\n", b"[" * 200_000 + b"\n"],
    ids=["no text", "no object", "no step", "nested too deeply"],
)
def test_spoilt_metrics(line: bytes, refused: Refused, run_folder: Path) -> None:
    file = run_folder / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], line, *lines[2:]]))
    refused("train", "--resume=run", says=["run/metrics.jsonl", "line 2"])
