"""Sweeps: what is done, by whom, and what is left when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from statetrack.errors import UserError
from statetrack.files import read_json, sole_writer
from statetrack.sweep import engine, measurements, pool
from statetrack.sweep.engine import SweepEvent, read_results, run_sweep, write_sweep_file
from statetrack.sweep.job import Job
from statetrack.training import Run
from tests.sweep.processes import LONG, start, worker_of
from tests.sweep.small import slow_jobs, small_job


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does the jobs in this process: starting others takes seconds."""

    def run_jobs(function: Any, jobs: Sequence[Any], workers: int | None) -> Iterator[pool.Event]:
        for index, job in enumerate(jobs):  # a list that grows
            yield pool.Event(index, "start", None)
            try:
                yield pool.Event(index, "done", function(job, lambda progress: None))
            except OSError as error:
                yield pool.Event(index, "failed", UserError(str(error)))
            except Killed as error:
                yield pool.Event(index, "died", UserError(str(error)))

    monkeypatch.setattr(pool, "run_jobs", run_jobs)
    monkeypatch.setattr(engine, "WAIT", 0.01)


class Killed(BaseException):
    """Stands for the death of a worker."""


class Log(list[tuple[str, str]]):
    """The events of a sweep, as (kind, name of the job)."""

    def __call__(self, event: SweepEvent) -> None:
        self.append((event.kind, event.job.name))

    def kinds(self, name: str) -> list[str]:
        return [kind for kind, job in self if job == name]


def event_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("inline")
def test_jobs_that_depend_on_results_are_listed_when_these_are_there(tmp_path: Path) -> None:
    tuning = [small_job(f"lr {lr}", lr=lr, min_lr=0.0) for lr in (1e-2, 1e-3)]

    def jobs(results: Mapping[str, Any]) -> list[Job]:
        if any(job.key not in results for job in tuning):
            return tuning
        best = min(tuning, key=lambda job: results[job.key]["train_loss"])
        final = small_job("final", seed=7, lr=best.config.training.lr, min_lr=0.0)
        return [
            *tuning,
            final,
            small_job("the same", seed=7, lr=final.config.training.lr, min_lr=0.0),
        ]

    log = Log()
    results = run_sweep(tmp_path / "sweep", jobs, on_event=log)
    assert len(results) == 3  # the same job twice is one
    assert log.kinds("final") == ["listed", "start", "done"]
    assert results == read_results(tmp_path / "sweep")
    rows = event_rows(tmp_path / "sweep")
    assert [row["event"] for row in rows] == ["start", "done"] * 3
    assert {row["process"] for row in rows} == {os.getpid()}

    again = Log()
    assert run_sweep(tmp_path / "sweep", jobs, on_event=again) == results
    assert again.kinds("final") == ["listed", "done"]
    assert len(event_rows(tmp_path / "sweep")) == 6


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    "wrong", [{"lr": 1e30, "warmup": 0.0, "schedule": "constant"}, {"model": {"hidden_size": 9}}],
    ids=["diverges", "impossible model"],
)  # fmt: skip
def test_a_failed_job_is_recorded_and_tried_again_only_on_demand(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    bad = small_job("bad", **wrong)
    good = small_job("good")
    results = run_sweep(tmp_path, lambda results: [bad, good])
    assert [results[job.key]["status"] for job in (bad, good)] == ["failed", "done"]
    assert "error" in event_rows(tmp_path)[1]
    log = Log()
    run_sweep(tmp_path, lambda results: [bad, good], on_event=log)
    assert log.kinds("bad") == ["listed", "failed"]
    log.clear()
    run_sweep(tmp_path, lambda results: [bad, good], on_event=log, retry_failed=True)
    assert log.kinds("bad") == ["listed", "start", "failed"]
    assert log.kinds("good") == ["listed", "done"]


@pytest.mark.usefixtures("inline")
def test_after_a_failure_of_the_machine_the_next_sweep_does_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    job = small_job("job")
    log = Log()
    with monkeypatch.context() as patch:
        patch.setattr(measurements, "_evaluations", full)
        assert run_sweep(tmp_path, lambda results: [job], on_event=log) == {}
    assert log.kinds("job") == ["listed", "start", "failed"]
    assert run_sweep(tmp_path, lambda results: [job])[job.key]["status"] == "done"


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("deaths", [2, 3])
def test_a_job_whose_worker_dies_is_tried_again_at_most_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    left = deaths

    def die(*args: object) -> dict[str, Any]:
        nonlocal left
        left -= 1
        if left >= 0:
            raise Killed("exit code -9")
        return {"evaluations": {}, "curve": None}

    monkeypatch.setattr(measurements, "_evaluations", die)
    log = Log()
    results = run_sweep(tmp_path, lambda results: [small_job("job")], on_event=log)
    last = "done" if deaths < 3 else "failed"
    assert log.kinds("job") == ["listed", *["start", "died"] * 2, "start", last]
    assert len(results) == (deaths < 3)


@pytest.mark.usefixtures("inline")
def test_a_job_that_another_process_is_doing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job("job")
    other = sole_writer(tmp_path / "jobs" / job.folder)  # a lock of this process is one as well
    other.__enter__()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            other.__exit__(None, None, None)  # killed, without a result

    monkeypatch.setattr(engine.time, "sleep", sleep)
    log = Log()
    results = run_sweep(tmp_path, lambda results: [job], on_event=log)
    assert log.kinds("job") == ["listed", "start", "busy", "start", "done"]
    assert len(results) == 1
    assert [row["event"] for row in event_rows(tmp_path)] == ["start", "done"]


@pytest.mark.usefixtures("inline")
def test_a_job_keeps_its_folder_under_another_name(tmp_path: Path) -> None:
    """Recipes that share a job may name it differently, in two processes at once."""
    run_sweep(tmp_path, lambda results: [small_job("one name")])
    (folder,) = (tmp_path / "jobs").iterdir()
    (folder / "result.json").unlink()
    run_sweep(tmp_path, lambda results: [small_job("another")])
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == [folder.name]
    assert (folder / "result.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "cloud"}, "engine must be one of local, slurm"),
        ({"workers": 0}, "runs side by side must be at least 1"),
        ({"engine_options": {"partition": "x"}}, "engine local has no options"),
        ({"track": ["paper"]}, "track must be one of tensorboard, wandb"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_sweep(tmp_path / "sweep", lambda results: [], **options)
    assert not (tmp_path / "sweep").exists()


def test_two_processes_a_killed_worker_and_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C ends a sweep; of two that go on with it, one loses its worker; each job is done once.

    One test: every process takes seconds to start.
    """
    folder = tmp_path / "sweep"
    first, second = (folder / "jobs" / job.folder for job in slow_jobs())
    interrupted = start(folder)
    old = worker_of(first)
    os.kill(interrupted.pid, signal.SIGINT)
    interrupted.communicate(timeout=LONG)
    assert not read_results(folder)
    assert (first / "run" / "checkpoints").is_dir()
    assert not (second / "run").exists()

    both = [start(folder), start(folder)]
    os.kill(worker_of(first, old), signal.SIGKILL)
    events = []
    for process in both:
        out, _ = process.communicate(timeout=LONG)
        assert process.returncode == 0
        events.append([tuple(json.loads(line)[:2]) for line in out.splitlines()])
    assert sum(("died", "first") in found for found in events) == 1
    for found in events:
        assert ("done", "first") in found
        assert ("done", "second") in found
    results = read_results(folder)
    assert [result["status"] for result in results.values()] == ["done", "done"]
    rows = event_rows(folder)
    for job in (first, second):
        kinds = [row["event"] for row in rows if row["job"] == job.name]
        assert kinds.count("done") == 1
    steps = [row["step"] for row in Run.open(first / "run").metrics()]
    assert steps == list(range(1, 801))  # resumed twice, nothing lost and nothing twice


def test_a_folder_belongs_to_one_sweep(tmp_path: Path) -> None:
    settings = {"scale": "smoke", "seeds": None}
    write_sweep_file(tmp_path / "mine", "statetrack sweep")
    write_sweep_file(tmp_path / "paper", "statetrack reproduce", ["s5"], {"scale": "smoke"})
    write_sweep_file(tmp_path / "paper", "statetrack reproduce", ["z60", "s5"], settings)
    before = {name: read_json(tmp_path / name / "sweep.json") for name in ("mine", "paper")}
    assert before["paper"]["recipes"] == ["s5", "z60"]
    with pytest.raises(UserError, match="mine belongs to a sweep; choose another folder"):
        write_sweep_file(tmp_path / "mine", "statetrack reproduce", ["s5"], settings)
    with pytest.raises(UserError, match="paper belongs to a reproduction; choose another folder"):
        write_sweep_file(tmp_path / "paper", "statetrack sweep")
    with pytest.raises(UserError, match="other settings: seeds: None, not 2; choose another"):
        write_sweep_file(tmp_path / "paper", "", ["s5"], {"scale": "smoke", "seeds": 2})
    assert before == {name: read_json(tmp_path / name / "sweep.json") for name in before}
