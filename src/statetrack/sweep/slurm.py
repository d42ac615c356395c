"""Run many jobs on a Slurm cluster with submitit, in the manner of `pool.run_jobs`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from statetrack.allocator import tune_allocator
from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.sweep.pool import Event, Report

POLL = 1.0  # seconds between checks of the jobs
DEFAULTS = {"name": "statetrack", "cpus_per_task": 1, "timeout_min": 24 * 60}


def run_jobs(
    function: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    folder: Path,
    workers: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Event]:
    """Call function(job, report) for every job in a Slurm job of its own; yield how they end.

    Progress is not reported. A Slurm job that reaches its time limit or is preempted is queued
    again. Closing the iterator, or an exception (Ctrl-C included), cancels the Slurm jobs.

    Args:
        function: What a Slurm job calls; it must be able to go on where it was cut short.
        jobs: The jobs. Whoever handles an event may add some at the end.
        folder: For the logs and submitit's own files.
        workers: Slurm jobs at a time; all if absent.
        options: `cluster` (slurm, or local for processes of this machine), parameters of submitit's
            AutoExecutor (timeout_min, mem_gb, cpus_per_task, ...), and those of Slurm (partition,
            account, time, ...). A job has as many threads as cpus_per_task, by default one.
    """
    submitit = _import_submitit()
    options = {**DEFAULTS, **(options or {})}
    at_least("cpus_per_task", options["cpus_per_task"], 1)
    executor = _executor(submitit, folder, dict(options))
    call = _Resumable(function, options["cpus_per_task"])
    submitted: dict[int, Any] = {}
    started: set[int] = set()
    following = 0  # the next job
    try:
        while True:
            count = len(jobs) - following
            if workers is not None:
                count = min(count, workers - len(submitted))
            fresh = range(following, following + count)
            if fresh:
                with executor.batch():  # one array of Slurm
                    made = [executor.submit(call, jobs[i]) for i in fresh]
                submitted.update(zip(fresh, made, strict=True))
                following += count
            if not submitted:
                return
            for index, job in list(submitted.items()):
                done = job.done()
                if index not in started and (done or job.state == "RUNNING"):
                    started.add(index)
                    yield Event(index, "start", None)
                if done:
                    del submitted[index]
                    yield _end(submitit, index, job)
            time.sleep(POLL)
    finally:
        for job in submitted.values():
            job.cancel()


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError(
            'the engine slurm needs submitit: pip install "statetrack[slurm]"'
        ) from None
    return submitit


def _executor(submitit: Any, folder: Path, options: dict[str, Any]) -> Any:
    cluster = options.pop("cluster", "slurm")
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster)
        shared = executor._valid_parameters()  # noqa: SLF001
        named = {n if n in shared else f"slurm_{n}": v for n, v in options.items()}
        executor.update_parameters(**named)
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"submitit refuses the options of the engine slurm: {reason}") from None
    return executor


def _end(submitit: Any, index: int, job: Any) -> Event:
    """Return the event that says how a Slurm job ended."""
    error = job.exception()
    if error is None:
        return Event(index, "done", job.result())
    if isinstance(error, submitit.core.utils.FailedJobError):  # an exception of the function
        return Event(index, "failed", RuntimeError(str(error)))
    reason = f"the Slurm job {job.job_id} ended as {job.state}; see {job.paths.stderr}"
    return Event(index, "died", UserError(reason))


class _Resumable:
    """The call of a Slurm job; submitit queues it again after a time-out or preemption."""

    def __init__(self, function: Callable[[Any, Report], Any], threads: int) -> None:
        self.function, self.threads = function, threads

    def __call__(self, job: Any) -> Any:
        import torch

        torch.set_num_threads(self.threads)
        tune_allocator()
        return self.function(job, lambda progress: None)

    def checkpoint(self, job: Any) -> Any:
        """Return the call that submitit queues again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)
