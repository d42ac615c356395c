"""Run folders in which something has been damaged or exchanged."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from statetrack import cli
from statetrack.errors import UserError
from statetrack.training import Run, train
from tests.training.refusal import Refused
from tests.training.small import small_config


def truncate(run: Run) -> None:
    file = run.checkpoint_file(4)
    file.write_bytes(file.read_bytes()[:-10])


def garble(run: Run) -> None:
    file = run.checkpoint_file(4)
    file.write_bytes(b"x" * file.stat().st_size)


def flip_a_bit(run: Run) -> None:
    file = run.checkpoint_file(4)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def pipe(suffix: str) -> Callable[[Run], None]:
    def spoil(run: Run) -> None:
        file = run.checkpoint_file(4).with_suffix(suffix)
        file.unlink()
        os.mkfifo(file)

    return spoil


def remove(run: Run) -> None:
    run.checkpoint_file(4).unlink()


def replace_by(run: Run, data: bytes) -> None:
    """Other tensors, and a byte count that is right for them, but no checksum."""
    file = run.checkpoint_file(4)
    file.write_bytes(data)
    about = {"schema": 2, "step": 4, "bytes": len(data)}
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
    pytest.param(garble, [FILE, "is damaged", "sha256", "step-00000004.json"], id="garbled"),
    pytest.param(flip_a_bit, [FILE, "is damaged", "sha256"], id="one bit"),
    pytest.param(pipe(".safetensors"), [FILE, "not a regular file"], id="pipe"),
    pytest.param(pipe(".json"), [f"{FILE}.json", "not a regular file"], id="json pipe"),
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
    pytest.param(about('{"schema": 2}'), [FILE, "bytes"], id="json empty"),
    pytest.param(about('{"schema": 2, "step": 2}'), [FILE, "is that of step 2"], id="json of 2"),
]


@pytest.mark.parametrize(("spoil", "says"), SPOILS)
def test_spoilt_checkpoints(
    spoil: Callable[[Run], None], says: list[str], refused: Refused, run_folder: Path
) -> None:
    spoil(Run.open(run_folder))
    refused("eval", "run", "--lengths=5", says=says)
    refused("train", "--resume=run", says=says)


def test_the_checkpoint_before_a_damaged_one_is_offered(
    refused: Refused, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(run_folder)
    end = run.checkpoint_file(4).read_bytes()
    flip_a_bit(run)
    offer = f"the checkpoint of step 2 is whole: to use it, delete run/{FILE}.json"
    refused("eval", "run", "--lengths=5", says=[offer])
    refused("train", "--resume=run", says=[offer])
    Path(f"run/{FILE}.json").unlink()
    assert cli.main(["eval", "run", "--lengths=5", "--samples=4"]) == 0
    assert cli.main(["train", "--resume=run"]) == 0
    assert run.checkpoint_file(4).read_bytes() == end
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]
    capsys.readouterr()
    for step in (2, 4):
        run.checkpoint_file(step).write_bytes(b"x" * len(end))
    with pytest.raises(UserError) as error:
        run.load()
    assert "whole" not in str(error.value)


def test_a_checkpoint_of_before_there_were_checksums(run_folder: Path) -> None:
    run = Run.open(run_folder)
    replace_by(run, run.checkpoint_file(4).read_bytes())
    assert cli.main(["eval", str(run_folder), "--lengths=5", "--samples=4"]) == 0


def test_weights_that_are_no_numbers(refused: Refused, run_folder: Path) -> None:
    run = Run.open(run_folder)
    tensors = run.load()[1]
    tensors["model.head.weight"][0, 0] = math.nan
    replace_by(run, safetensors.torch.save(tensors))
    refused("eval", "run", "--lengths=5", says=["head.weight of the checkpoint of step 4 in run"])


@pytest.mark.parametrize("name", ["model.head.weight", "optimizer.exp_avg.head.weight"])
def test_another_number_type(name: str, refused: Refused, run_folder: Path) -> None:
    run = Run.open(run_folder)
    tensors = run.load()[1]
    tensors[name] = tensors[name].half()
    replace_by(run, safetensors.torch.save(tensors))
    says = [f"{name} of dtype torch.float16", "says torch.float32"]
    refused("train", "--resume=run", says=says)


def test_linked_checkpoints_are_read_but_not_written_to(
    refused: Refused, run_folder: Path, tmp_path: Path
) -> None:
    """Those of another run: old checkpoints are dropped, and these are not the run's own."""
    shutil.copytree(run_folder, tmp_path / "other")
    shutil.rmtree(run_folder / "checkpoints")
    (run_folder / "checkpoints").symlink_to(tmp_path / "other" / "checkpoints")
    refused("train", "--resume=run", says=["run/checkpoints is a symbolic link"])
    assert cli.main(["eval", "run", "--lengths=5", "--samples=4"]) == 0


def test_another_file_among_the_checkpoints_is_none(run_folder: Path) -> None:
    (run_folder / "checkpoints" / "step-best.json").write_text("{}")
    assert Run.open(run_folder).checkpoint_steps() == [2, 4]
    assert cli.main(["eval", str(run_folder), "--lengths=5", "--samples=4"]) == 0


def test_a_checkpoint_of_another_schema(refused: Refused, run_folder: Path) -> None:
    size = Run.open(run_folder).checkpoint_file(4).stat().st_size
    about(json.dumps({"schema": 3, "step": 4, "bytes": size}))(Run.open(run_folder))
    refused("eval", "run", "--lengths=5", says=[f"{FILE}.json", "schema 3"])
    refused("train", "--resume=run", says=[f"{FILE}.json", "schema 3"])


def test_a_checkpoint_without_the_optimiser_cannot_be_resumed(
    refused: Refused, run_folder: Path
) -> None:
    without_moments(Run.open(run_folder))
    refused("train", "--resume=run", says=["run", "lacks tensor optimizer.exp_avg"])


def test_metrics_that_are_a_pipe(refused: Refused, run_folder: Path) -> None:
    (run_folder / "metrics.jsonl").unlink()
    os.mkfifo(run_folder / "metrics.jsonl")
    refused("train", "--resume=run", says=["run/metrics.jsonl", "not a regular file"])


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
