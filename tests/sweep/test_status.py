"""What the folder of a sweep says of its jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from statetrack.errors import UserError
from statetrack.files import sole_writer, write_json
from statetrack.sweep.status import read_status
from statetrack.sweep.work import do_job
from statetrack.training import train
from tests.conftest import Command
from tests.sweep.small import small_job


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Jobs in every state; "running" must be locked by the test."""
    bad = {"lr": 1e30, "warmup": 0.0, "schedule": "constant"}
    jobs = {
        "done": small_job("done", lengths=("12",)),
        "failed": small_job("failed", seed=1, **bad),
        "waiting": small_job("waiting", seed=2),
        "interrupted": small_job("interrupted", seed=3),
        "running": small_job("running", seed=4),
    }
    for name, job in jobs.items():
        folder = tmp_path / "sweep" / "jobs" / name
        folder.mkdir(parents=True)
        write_json(folder / "job.json", job.to_json())
        if name in ("done", "failed"):
            do_job(job, folder)
        elif name in ("interrupted", "running"):
            train(job.config, folder / "run")
    return tmp_path / "sweep"


def test_the_status_of_every_job(sweep: Path) -> None:
    with sole_writer(sweep / "jobs" / "running"):
        found = {job.name: job for job in read_status(sweep)}
    status = {name: job.status for name, job in found.items()}
    assert status == {
        "running": "running", "failed": "failed", "interrupted": "waiting", "waiting": "waiting",
        "done": "done",
    }  # fmt: skip
    assert next(iter(found)) == "running"
    assert (found["running"].step, found["running"].steps) == (4, 4)
    assert found["running"].text.startswith("process ")
    assert found["interrupted"].text == "interrupted"
    assert "at 12" in found["done"].text
    assert "last good checkpoint" in found["failed"].text


def test_the_command(sweep: Path, command: Command) -> None:
    result = command("sweep", "status", sweep)
    assert result.code == 0
    assert result.out.startswith("1 done, 3 waiting, 1 failed, 0 running\n")
    assert "last good checkpoint" in result.out
    assert "interrupted" not in result.out
    everything = command("sweep", "status", sweep, "--all", "--json", sweep / "status.json")
    assert "interrupted" in everything.out
    assert '"waiting": 3' in (sweep / "status.json").read_text()


def test_what_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a sweep"):
        read_status(tmp_path)
    write_json(tmp_path / "job.json", [])
    (tmp_path / "jobs" / "x").mkdir(parents=True)
    write_json(tmp_path / "jobs" / "x" / "job.json", [])
    with pytest.raises(UserError, match="is not a job"):
        read_status(tmp_path)
