"""Two processes (gloo) give the losses of one, and go on after one of them was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from benchmarks.reliability.pretraining import small_config
from benchmarks.reliability.processes import rows
from statetrack.lm.load import load_language_model
from statetrack.lm.pretraining.checkpoint import PretrainingRun
from statetrack.lm.pretraining.loop import pretrain
from tests.conftest import ROOT
from tests.lm.pretraining.test_command import SHORT, SIZES

KINDS = pytest.mark.parametrize("kind", ["ddp", "fsdp"])
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


def run_python(*words: str | Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    program = [sys.executable, *map(str, words)]
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def two(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of `two_processes`."""
    out = tmp_path_factory.mktemp("two")
    run_python("-m", "tests.lm.pretraining.two_processes", data, out)
    return out


@pytest.fixture(scope="module")
def one(data: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainingRun:
    return pretrain(small_config(data), tmp_path_factory.mktemp("one") / "run")


@pytest.mark.parametrize(
    "name", [k + how for k in ("ddp", "fsdp") for how in ("", "-one", "-chunked")]
)
def test_two_processes_give_the_losses_of_one(name: str, two: Path, one: PretrainingRun) -> None:
    """Also if one goes on where two were, and if they back-propagate over chunks."""
    other = PretrainingRun.open(two / name)
    assert other.config.shard == name.startswith("fsdp")
    for row, found in zip(rows(one), rows(other), strict=True):
        assert row.keys() == found.keys()
        for key, value in row.items():
            near = isinstance(value, float)
            assert found[key] == (pytest.approx(value, rel=1e-4) if near else value)
    models = [load_language_model(run.folder).model for run in (one, other)]
    parameters = [dict(model.named_parameters()) for model in models]
    for key, weight in parameters[0].items():
        torch.testing.assert_close(parameters[1][key], weight, rtol=1e-3, atol=2e-4)


@KINDS
def test_a_killed_worker_resumes_bit_for_bit(kind: str, two: Path) -> None:
    whole, killed = (PretrainingRun.open(two / name) for name in (kind, f"{kind}-killed"))
    assert rows(killed) == rows(whole)
    files = [f.relative_to(whole.folder) for f in whole.folder.rglob("*.safetensors")]
    assert len(files) == 5  # of each of two checkpoints two, and the model
    for file in files:
        expected = safetensors.torch.load_file(whole.folder / file)
        found = safetensors.torch.load_file(killed.folder / file)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_accelerate_starts_the_command(data: Path, tmp_path: Path) -> None:
    """It calls torchrun, whose variables the other tests set, and sets some of its own."""
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    line = ["-m", "statetrack", "lm", "train", "--data", data, "--out", tmp_path / "run"]
    run_python(*launch, *line, *SIZES, *SHORT, "--shard", "--json", tmp_path / "told.json")
    run = PretrainingRun.open(tmp_path / "run")
    assert run.finished
    assert (tmp_path / "told.json").exists()


def test_killed_and_resumed(tmp_path: Path) -> None:
    """A few of what `python -m benchmarks kills --pretraining` tries."""
    run_python(
        "-m", "benchmarks", "kills", "--pretraining", "--count=6", "--json", tmp_path / "told.json"
    )
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["resumed"], told["failed"]) == (6, [])
