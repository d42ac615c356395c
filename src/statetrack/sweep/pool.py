"""Run many jobs on the machine's cores, one process each, and report their progress.

Workers are fresh processes (spawned, never forked) with one thread each, so a job's result does
not depend on how many run beside it. Each has its own pipe to the parent, which notices a worker
that dies.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple

from statetrack.allocator import tune_allocator
from statetrack.errors import UserError

Report = Callable[[Any], None]


class Event(NamedTuple):
    """A job has started, made progress, finished or failed, or its worker has died."""

    job: int
    kind: Literal["start", "progress", "done", "failed", "died"]
    value: Any  # what the job reports or returns; the exception of one that failed or died


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    function: Callable[[Any, Report], Any], jobs: Sequence[Any], workers: int | None = None
) -> Iterator[Event]:
    """Call function(job, report) for every job; yield what they report and return.

    `function` and the jobs are pickled: a module's function and plain data. Closing the iterator,
    or an exception (Ctrl-C included), ends the workers.

    Args:
        function: What a worker calls. Its exception ends the job, not the others.
        jobs: The jobs. Whoever handles an event may add some at the end.
        workers: Processes side by side; one per core if absent.
    """
    by_pipe: dict[Connection, _Worker] = {}
    following = 0  # the next job
    most = workers or cores()
    try:
        while True:
            while following < len(jobs):
                worker = next((w for w in by_pipe.values() if w.job is None), None)
                if worker is None:
                    if len(by_pipe) >= most:
                        break
                    numbers = {worker.number for worker in by_pipe.values()}
                    worker = _Worker(function, next(n for n in count() if n not in numbers))
                    by_pipe[worker.pipe] = worker
                worker.job, following = following, following + 1
                worker.send(jobs[worker.job])
                yield Event(worker.job, "start", None)
            busy = [pipe for pipe, worker in by_pipe.items() if worker.job is not None]
            if not busy:
                break
            for pipe in wait(busy):
                assert isinstance(pipe, Connection)
                worker = by_pipe[pipe]
                event = worker.receive()
                if event.kind == "died":
                    del by_pipe[pipe]
                yield event
        for worker in by_pipe.values():
            worker.pipe.close()  # it sees the end and leaves
            worker.process.join()
        by_pipe.clear()
    finally:
        for worker in by_pipe.values():
            worker.process.terminate()
        for worker in by_pipe.values():
            worker.process.join()


def run_all(
    function: Callable[[Any, Report], Any], jobs: Sequence[Any], workers: int | None = None
) -> Iterator[Event]:
    """Do what `run_jobs` does, but raise the first exception of a job, which ends the others."""
    with closing(run_jobs(function, jobs, workers)) as events:  # type: ignore[type-var]
        for event in events:
            if event.kind in ("failed", "died"):
                raise event.value
            yield event


class _Worker:
    """A process, the pipe to it and the job that it is doing."""

    def __init__(self, function: Callable[[Any, Report], Any], number: int) -> None:
        self.number = number
        context = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        self.process = context.Process(
            target=_work, args=(function, child_pipe, number), daemon=True
        )
        with _sigint_ignored():  # inherited: Ctrl-C is the parent's to handle
            self.process.start()
        child_pipe.close()
        self.job: int | None = None

    def send(self, job: Any) -> None:
        with suppress(ConnectionError):  # it has died, as `receive` will find
            self.pipe.send(job)

    def receive(self) -> Event:
        """Wait for the next event of its job."""
        assert self.job is not None
        index = self.job
        try:
            kind, value = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            error = (
                f"a worker process ended with exit code {code}; the machine may have run out of "
                "memory"
            )
            return Event(index, "died", UserError(error))
        if kind == "crash":
            kind, value = "failed", RuntimeError(f"a worker process failed:\n{value}")
        elif kind == "mistake":
            kind, value = "failed", UserError(value)
        if kind != "progress":
            self.job = None
        return Event(index, kind, value)


@contextmanager
def _sigint_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(function: Callable[[Any, Report], Any], pipe: Connection, number: int) -> None:
    import torch

    from statetrack.devices import prefer_gpu

    torch.set_num_threads(1)
    prefer_gpu(number)  # workers share the GPUs evenly
    tune_allocator()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            result = function(job, lambda value: pipe.send(("progress", value)))
            pipe.send(("done", result))
        except ConnectionError:  # the parent has died
            return
        except (UserError, OSError) as error:
            pipe.send(("mistake", str(error)))
        except Exception:  # sent as text: not every exception can be pickled
            pipe.send(("crash", traceback.format_exc()))
