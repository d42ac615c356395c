"""`statetrack sweep`: the grid that its options make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statetrack.sweep import engine
from tests.conftest import Command
from tests.training.refusal import Refused
from tests.training.small import FLAGS


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs that a command gives to the engine, which does nothing."""
    given: list[Any] = []

    def run_sweep(folder: Path, list_jobs: Any, **options: Any) -> dict[str, Any]:
        given.extend(list_jobs({}))
        return {job.key: {"status": "done"} for job in given}

    monkeypatch.setattr(engine, "run_sweep", run_sweep)
    return given


def test_a_grid_of_all_values(jobs: list[Any], command: Command, tmp_path: Path) -> None:
    grid = ["--mixer=delta_net,attention", "--lr=1e-2,1e-3", "--seed=0-2,7", "--out", tmp_path]
    result = command("sweep", *FLAGS, *grid, "--allow-neg-eigval", "both", "--lengths", "8", "9-12")
    assert result.code == 0, result.err
    assert "24 runs, 24 to do" in result.out
    points = {(j.config.model.title, j.config.training.lr, j.config.training.seed) for j in jobs}
    titles = ("DeltaNet [0,1]", "DeltaNet [-1,1]", "Attention")
    assert points == {(t, lr, s) for t in titles for lr in (1e-2, 1e-3) for s in (0, 1, 2, 7)}
    assert jobs[0].name == "parity DeltaNet [0,1] lr 0.01 seed 0"
    assert jobs[0].lengths == ("8", "9-12")
    assert json.loads((tmp_path / "sweep.json").read_text())["recipes"] is None


def test_options_that_only_some_have(jobs: list[Any], command: Command, tmp_path: Path) -> None:
    mixers = "--mixer=delta_net,delta_product,mamba+delta_net"
    flags = ["--num-householder=2,3", "--eval-lengths", "20", "30-40"]
    result = command("sweep", "--task=parity,S5", mixers, *flags, "--out", tmp_path)
    assert result.code == 0, result.err
    assert len(jobs) == 2 * (1 + 2 + 1)
    assert {job.config.task.name for job in jobs} == {"parity", "S5"}
    assert jobs[0].lengths == ("3-40", "20", "30-40")  # the training range and validation lengths


@pytest.mark.parametrize(
    ("flag", "values"), [("", {True}), ("False", {False}), ("both", {True, False})]
)
def test_switches(
    jobs: list[Any], command: Command, tmp_path: Path, flag: str, values: set[bool]
) -> None:
    given = ["--allow-neg-eigval", *([flag] if flag else [])]
    command("sweep", *FLAGS, "--out", tmp_path, *given)
    assert {job.config.model.pattern[0].allow_neg_eigval for job in jobs} == values
    jobs.clear()
    command("sweep", *FLAGS, "--out", tmp_path, "--no-allow-neg-eigval")
    assert not jobs[0].config.model.pattern[0].allow_neg_eigval


def test_a_preset(jobs: list[Any], command: Command, tmp_path: Path) -> None:
    command("sweep", "--preset=demo", "--mixer=mamba,delta_net", "--seed=3,4", "--out", tmp_path)
    assert [job.config.training.data_seed for job in jobs] == [3, 4, 3, 4]


def test_a_plan_runs_nothing(command: Command, tmp_path: Path) -> None:
    result = command("sweep", *FLAGS, "--seed=0-1", "--plan", "--out", tmp_path / "sweep")
    assert result.out.splitlines()[1:] == [f"parity DeltaNet [0,1] seed {i}" for i in (0, 1)]
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr=1e-3,x"], "--lr must be a number; got 'x'"),
        (["--seed=4-1"], "a range has 1 to 10,000 numbers: 4-1"),
        (["--seed=0-9999", "--lr=1,2"], "at most 10,000 runs"),
        (["--lrr=1"], "unknown option '--lrr'"),
        (["--mixer=delta_net,nope"], "unknown mixer 'nope'"),
        (["--engine=cloud"], "--engine must be one of local, slurm"),
        (["--engine=slurm", "--engine-options", "cpu"], "name=value; got 'cpu'"),
        (["--engine-options", "partition=cpu"], "the engine local has no options"),
        (["--lengths", "far"], "a length is a number"),
        (["--jobs=0"], "runs side by side must be at least 1"),
        (["status"], "FOLDER is missing"),
    ],
)
def test_mistakes(refused: Refused, arguments: list[str], message: str) -> None:
    refused("sweep", *arguments, says=[message])
