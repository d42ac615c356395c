"""Run the jobs of a sweep, whose state is a folder: any process may begin, continue or share it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from statetrack.config import one_of
from statetrack.devices import count_gpus
from statetrack.errors import UserError
from statetrack.files import (
    LockedError,
    check_new,
    parse_json,
    read_json,
    sole_writer,
    write_json,
)
from statetrack.sweep import pool
from statetrack.sweep.job import KEY_SIZE, SweepJob
from statetrack.sweep.pool import Report
from statetrack.sweep.work import RESULT, do_job, read_result
from statetrack.training.start import difference
from statetrack.training.trackers import make_trackers

SWEEP_SCHEMA = 1
JOB, SWEEP = "job.json", "sweep.json"
ENGINES = ("local", "slurm")
ATTEMPTS = 3  # at a job whose worker dies
WAIT = 2.0  # seconds between checks of jobs that other processes are doing

Results = dict[str, dict[str, Any]]
ListJobs = Callable[[Mapping[str, dict[str, Any]]], Sequence[SweepJob]]


class SweepEvent(NamedTuple):
    """What happens to a job of a sweep.

    kind: listed, start, progress (value: a training Progress), done or failed (value: the result,
    or None if there is none), died (its worker; the job is tried again), busy (another process
    does it).
    """

    kind: Literal["listed", "start", "progress", "done", "failed", "died", "busy"]
    job: SweepJob
    value: Any = None
    error: str | None = None  # of a job that failed or whose worker died


def run_sweep(
    folder: Path,
    jobs: ListJobs,
    *,
    workers: int | None = None,
    engine: Literal["local", "slurm"] = "local",
    engine_options: Mapping[str, Any] | None = None,
    on_event: Callable[[SweepEvent], None] = lambda event: None,
    retry_failed: bool = False,
    track: Sequence[str] = (),
) -> Results:
    """Do every job of a sweep that is not done yet.

    Finished jobs are not repeated, interrupted ones resume, and those that other processes are
    doing are waited for. A job that fails is recorded and does not end the sweep; one whose worker
    dies is tried again, at most twice.

    Args:
        folder: The sweep's folder, new or old.
        jobs: Lists the jobs, given the results so far; it is asked again whenever there are new
            results, until it lists nothing new. A job listed twice is done once.
        workers: Processes side by side, or Slurm jobs. If absent, one for each GPU that the jobs
            use, else for each core; or all Slurm jobs.
        engine: Where to run.
        engine_options: For Slurm, the parameters of submitit's executor.
        on_event: Called for every event.
        retry_failed: Do jobs that failed earlier once more.
        track: Also send the metrics of training there: tensorboard, wandb.

    Returns:
        The results by the jobs' keys, also of jobs that failed.
    """
    check_options(workers, engine, engine_options, track)
    folder = Path(folder)
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    sweep = _Sweep(folder, jobs, on_event, retry_failed, tuple(track), read_results(folder))
    sweep.update()
    while sweep.assignments:
        with closing(_events(engine, folder, sweep.assignments, workers, engine_options)) as events:  # type: ignore[type-var]
            for event in events:
                sweep.handle(event)
        sweep.wait_for_others()
    return sweep.results


def check_options(
    workers: int | None,
    engine: str,
    engine_options: Mapping[str, Any] | None,
    track: Sequence[str],
) -> None:
    """Raise a UserError if `run_sweep` would refuse these options."""
    one_of("engine", engine, ENGINES)
    if workers is not None and workers < 1:
        raise UserError(f"the number of runs side by side must be at least 1; got {workers}")
    if engine == "local" and engine_options:
        raise UserError(f"the engine local has no options; got {', '.join(engine_options)}")
    make_trackers(track)  # refuses unknown ones


def read_results(folder: Path) -> Results:
    """Return the results in a sweep's folder, by their jobs' keys."""
    return {
        result["key"]: result
        for path in sorted((Path(folder) / "jobs").glob(f"*/{RESULT}"))
        for result in [read_result(path.parent)]
    }


def write_sweep_file(
    folder: Path,
    command: str,
    recipes: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write sweep.json, which names the command, recipes and settings of a sweep.

    Args:
        folder: of the sweep, new or old.
        command: the command that was called.
        recipes: of a reproduction; they are added to those that the folder has already.
        settings: of the recipes.

    Raises:
        UserError: The folder holds something else, or a reproduction with other settings.
    """
    if not any((folder / name).exists() for name in (SWEEP, "jobs")):
        check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SWEEP
    if file.exists():
        old = read_json(file)
        if bool(old.get("recipes")) != bool(recipes):
            owner = "reproduction" if old.get("recipes") else "sweep"
            raise UserError(f"{folder} belongs to a {owner}; choose another folder")
        if recipes and settings:
            plain = parse_json(json.dumps(settings))  # with lists for tuples, as in the file
            # a setting may be newer than the file
            before = plain | (old.get("settings") or {})
            if before != plain:
                where = difference("", before, plain)
                raise UserError(f"{folder} has other settings: {where}; choose another folder")
            recipes = list(dict.fromkeys([*old["recipes"], *recipes]))
    about = {"schema": SWEEP_SCHEMA, "recipes": recipes, "settings": settings, "command": command}
    write_json(file, about)


def log_event(folder: Path, kind: str, job: str, error: str | None = None) -> None:
    """Append a row to a sweep's events.jsonl."""
    row = {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "event": kind,
        "job": job,
        "process": os.getpid(),
        "host": socket.gethostname(),
        **({"error": error} if error else {}),
    }
    line = (json.dumps(row) + "\n").encode()
    # one write to a file opened for appending: rows of two processes do not mix
    file = os.open(folder / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, line)
    finally:
        os.close(file)


class Assignment(NamedTuple):
    """A job as it is given to a worker."""

    sweep: Path
    folder: Path  # of the job
    job: SweepJob
    retry: bool  # although it failed earlier
    track: tuple[str, ...]  # with these trackers


def do_assignment(assignment: Assignment, report: Report) -> dict[str, Any] | None:
    """Do a job of a sweep in a worker; return its result, or None if another process does it."""
    name = assignment.folder.name
    try:
        with sole_writer(assignment.folder):  # the claim
            if (assignment.folder / RESULT).exists():  # another process was faster
                result = read_result(assignment.folder)
                if result["status"] == "done" or not assignment.retry:
                    return result
                (assignment.folder / RESULT).unlink()
            log_event(assignment.sweep, "start", name)
            result = do_job(
                assignment.job, assignment.folder, report, make_trackers(assignment.track)
            )
            log_event(assignment.sweep, result["status"], name, result["error"])
            return result
    except LockedError:
        return None
    except (OSError, MemoryError) as error:
        log_event(assignment.sweep, "failed", name, str(error) or type(error).__name__)
        raise


def _events(
    engine: str,
    folder: Path,
    assignments: list[Assignment],
    workers: int | None,
    options: Mapping[str, Any] | None,
) -> Iterator[pool.Event]:
    if engine == "local":
        return pool.run_jobs(
            do_assignment,
            assignments,
            workers or workers_for([assignment.job for assignment in assignments]),
        )
    from statetrack.sweep import slurm

    return slurm.run_jobs(do_assignment, assignments, folder / "slurm", workers, options or {})


def workers_for(jobs: Sequence[SweepJob]) -> int:
    """Return how many jobs run side by side: one on each core, or on each GPU that they use."""
    gpus, names = count_gpus(), {job.device for job in jobs}
    if gpus and names & {"auto", "cuda"}:
        return gpus
    numbered = [name for name in names if name.startswith("cuda:")]
    return len(numbered) if gpus and numbered else pool.cores()


@dataclass
class _Sweep:
    """The state of a sweep in one of its processes."""

    folder: Path
    list_jobs: ListJobs
    on_event: Callable[[SweepEvent], None]
    retry_failed: bool
    track: tuple[str, ...]
    results: Results
    assignments: list[Assignment] = field(default_factory=list)  # given to the workers, in order
    listed: dict[str, SweepJob] = field(default_factory=dict)
    busy: dict[str, Assignment] = field(default_factory=dict)  # that other processes are doing
    deaths: dict[str, int] = field(default_factory=dict)  # of workers, by job

    def update(self) -> None:
        """List the jobs that are known from the results so far."""
        fresh: dict[str, SweepJob] = {}
        for job in self.list_jobs(self.results):
            if job.key not in self.listed:
                fresh.setdefault(job.key, job)
        if not fresh:
            return
        self.listed |= fresh
        with _patient_writer(self.folder / "jobs"):  # no other process lists jobs meanwhile
            folders = {path.name[-KEY_SIZE:]: path for path in (self.folder / "jobs").iterdir()}
            for key, job in fresh.items():
                if key not in folders:  # the same job may have another name there
                    folders[key] = self.folder / "jobs" / job.folder
                    folders[key].mkdir()
                if not (folders[key] / JOB).exists():
                    write_json(folders[key] / JOB, job.to_json())
        for key, job in fresh.items():
            self._take(Assignment(self.folder, folders[key], job, self.retry_failed, self.track))

    def _take(self, assignment: Assignment) -> None:
        """Queue a job unless it has a result."""
        self.on_event(SweepEvent("listed", assignment.job))
        result = self.results.get(assignment.job.key)
        if result is None or (result["status"] == "failed" and assignment.retry):
            self.results.pop(assignment.job.key, None)
            self.assignments.append(assignment)
        else:
            self.on_event(SweepEvent(result["status"], assignment.job, result, result["error"]))

    def handle(self, event: pool.Event) -> None:
        """Handle an event of a worker."""
        assignment = self.assignments[event.job]
        if event.kind in ("start", "progress"):
            self.on_event(SweepEvent(event.kind, assignment.job, event.value))
        elif event.kind == "done" and event.value is None:
            self.busy[assignment.job.key] = assignment
            self.on_event(SweepEvent("busy", assignment.job))
        elif event.kind == "done":
            self._finish(assignment.job, event.value)
        elif event.kind == "failed":  # the machine, not the job: there is no result
            self.on_event(SweepEvent("failed", assignment.job, None, str(event.value)))
        else:
            self._died(assignment, str(event.value))

    def _finish(self, job: SweepJob, result: dict[str, Any]) -> None:
        self.results[job.key] = result
        self.on_event(SweepEvent(result["status"], job, result, result["error"]))
        self.update()

    def _died(self, assignment: Assignment, error: str) -> None:
        """Queue a job again whose worker died."""
        log_event(self.folder, "failed", assignment.folder.name, error)
        deaths = self.deaths[assignment.job.key] = self.deaths.get(assignment.job.key, 0) + 1
        if deaths < ATTEMPTS:
            self.on_event(SweepEvent("died", assignment.job, None, error))
            self.assignments.append(assignment)
        else:
            self.on_event(SweepEvent("failed", assignment.job, None, f"{error} ({deaths} times)"))

    def wait_for_others(self) -> None:
        """Wait until other processes have finished their jobs, or until one is left to be done."""
        self.assignments.clear()
        while self.busy and not self.assignments:
            time.sleep(WAIT)
            for key, assignment in list(self.busy.items()):
                if is_locked(assignment.folder):
                    continue
                del self.busy[key]
                if (assignment.folder / RESULT).exists():
                    self._finish(assignment.job, read_result(assignment.folder))
                else:
                    self.assignments.append(assignment)


@contextmanager
def _patient_writer(folder: Path) -> Iterator[None]:
    """Lock a folder; retry until no other process holds the lock."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(sole_writer(folder))
                break
            except LockedError:
                continue  # the attempt itself waits a moment
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to a folder."""
    try:
        with sole_writer(folder):
            return False
    except LockedError:
        return True
