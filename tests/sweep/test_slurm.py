"""The engine slurm, with submitit's own executor for the local machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from statetrack.errors import UserError
from statetrack.sweep.engine import read_results, run_sweep
from statetrack.sweep.slurm import run_jobs
from statetrack.training import Run
from tests.sweep.processes import LONG, start, worker_of
from tests.sweep.small import slow_jobs, small_job


def test_a_worker_killed_in_the_middle_and_a_rerun_that_completes(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    folder = tmp_path / "sweep"
    first, second = (folder / "jobs" / job.folder for job in slow_jobs())
    sweep = start(folder, "slurm")
    killed = worker_of(first)
    os.kill(killed, signal.SIGKILL)
    worker_of(second)
    os.kill(sweep.pid, signal.SIGINT)  # while the second job runs
    out, _ = sweep.communicate(timeout=LONG)
    assert any(json.loads(line)[0] == "died" for line in out.splitlines())
    assert not (second / "result.json").exists()

    again = start(folder, "slurm")
    out, _ = again.communicate(timeout=LONG)
    assert again.returncode == 0
    assert len(read_results(folder)) == 2
    for job in (first, second):
        steps = [row["step"] for row in Run.open(job / "run").metrics()]
        assert steps == list(range(1, 801))


def test_without_submitit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r'pip install "statetrack\[slurm\]"'):
        run_sweep(tmp_path, lambda results: [small_job()], engine="slurm")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "local", "colour": "red"}, "colour"),
        ({"cluster": "moon"}, "moon"),
        ({"cluster": "local", "timeout_min": "long"}, "timeout_min"),
    ],
)
def test_options_that_submitit_refuses(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(UserError, match=f"the options of the engine slurm: .*{message}"):
        run_sweep(tmp_path, lambda results: [small_job()], engine="slurm", engine_options=options)


# submitit's executor for debugging leaves the job's logs open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("options", "threads"), [({}, 1), ({"cpus_per_task": 3}, 3)])
def test_a_job_has_a_thread_for_each_cpu(
    tmp_path: Path, options: dict[str, int], threads: int
) -> None:
    pytest.importorskip("submitit")
    before = torch.get_num_threads()
    try:
        here = {"cluster": "debug", **options}  # submitit runs the job in this process
        events = list(run_jobs(lambda job, report: torch.get_num_threads(), [0], tmp_path, 1, here))
    finally:
        torch.set_num_threads(before)
    assert [(event.kind, event.value) for event in events] == [("start", None), ("done", threads)]
