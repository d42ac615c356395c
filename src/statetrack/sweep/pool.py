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
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple

from statetrack.allocator import tune_allocator
from statetrack.errors import UserError

Report = Callable[[Any], None]


class Event(NamedTuple):
    """A job has started, made progress or finished."""

    job: int
    kind: Literal["start", "progress", "done"]
    value: Any


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
    or an exception (Ctrl-C included), ends the workers. An exception in a job is raised here.
    """
    context = multiprocessing.get_context("spawn")
    waiting = list(enumerate(jobs))[::-1]
    crew: dict[Connection, tuple[Any, int]] = {}
    try:
        for _ in range(min(len(jobs), workers or cores())):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(function, theirs), daemon=True)
            with _sigint_ignored():  # inherited: Ctrl-C is the parent's to handle
                process.start()
            theirs.close()
            index, job = waiting.pop()
            crew[ours] = (process, index)
            with _alive(process, index, len(jobs)):
                ours.send(job)
            yield Event(index, "start", None)
        while crew:
            for pipe in wait(list(crew)):
                assert isinstance(pipe, Connection)
                process, index = crew[pipe]
                with _alive(process, index, len(jobs)):
                    kind, value = pipe.recv()
                if kind == "mistake":
                    raise UserError(value)
                if kind == "crash":
                    raise RuntimeError(f"a worker process failed:\n{value}")
                yield Event(index, kind, value)
                if kind == "done":
                    del crew[pipe]
                    if waiting:
                        index, job = waiting.pop()
                        crew[pipe] = (process, index)
                        with _alive(process, index, len(jobs)):
                            pipe.send(job)
                        yield Event(index, "start", None)
                    else:
                        pipe.close()  # the worker sees the end and leaves
                        process.join()
    finally:
        for process, _ in crew.values():
            process.terminate()
        for process, _ in crew.values():
            process.join()


@contextmanager
def _alive(process: Any, index: int, jobs: int) -> Iterator[None]:
    """Raise a UserError if the worker at the other end of the pipe has died."""
    try:
        yield
    except (EOFError, ConnectionError):
        process.join()
        raise UserError(
            f"a worker process ended with exit code {process.exitcode} during job "
            f"{index + 1} of {jobs}; was memory short?"
        ) from None


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


def _work(function: Callable[[Any, Report], Any], pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    tune_allocator()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            result = function(job, lambda value: pipe.send(("progress", value)))
            pipe.send(("done", result))
        except (UserError, OSError) as error:
            pipe.send(("mistake", str(error)))
        except Exception:  # sent as text: not every exception can be pickled
            pipe.send(("crash", traceback.format_exc()))
