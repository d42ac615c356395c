"""Jobs side by side in processes. Every worker costs the time to load torch: they are few."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from statetrack.errors import UserError
from statetrack.sweep.pool import cores, run_jobs
from tests.sweep import dies_on_import, jobs


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_worker_does_one_job_after_the_other() -> None:
    assert list(run_jobs(jobs.double, [10, 20], workers=1)) == [
        (0, "start", None),
        (0, "progress", "at 10"),
        (0, "done", 20),
        (1, "start", None),
        (1, "progress", "at 20"),
        (1, "done", 40),
    ]


def test_two_workers_share_the_jobs_and_closing_early_ends_them() -> None:
    """While one hangs in job 1, the other does jobs 0 and 2, and then hangs in job 3."""
    done, started, hanging = {}, [], []
    todo = [10, None, 20, None, 30]
    with closing(run_jobs(jobs.double_or_hang, todo, workers=2)) as events:  # type: ignore[type-var]
        for event in events:
            if event.kind == "start":
                started.append(event.job)
            elif event.kind == "done":
                done[event.job] = event.value
            else:
                hanging.append(event.value)
            if len(hanging) == 2:
                break
        assert all(map(alive, hanging))
    assert started == [0, 1, 2, 3]
    assert done == {0: 20, 2: 40}
    assert not any(map(alive, hanging))


def test_a_worker_has_one_thread_and_leaves_in_the_end() -> None:
    events = list(run_jobs(jobs.who_and_threads, ["one job"], workers=8))
    assert [event.kind for event in events] == ["start", "done"]  # so there was one worker
    pid, threads = events[-1].value
    assert threads == 1
    assert pid != os.getpid()
    assert not alive(pid)


def test_no_jobs() -> None:
    assert list(run_jobs(jobs.double, [])) == []


def test_cores() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("job", "error", "message"),
    [
        pytest.param("mistake", UserError, r"^the length must be at least 2; got 1$", id="mistake"),
        pytest.param("disk", UserError, r"No space left on device.*/somewhere", id="full disk"),
        pytest.param("bug", RuntimeError, r"(?s)in fail.*ZeroDivisionError: a bug", id="bug"),
        pytest.param("3", UserError, r"exit code 3 .* job 1 of 2", id="sudden end"),
    ],
)
def test_what_goes_wrong_in_a_job(job: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(run_jobs(jobs.fail, [job, "4"], workers=1))


def test_a_worker_that_ends_before_it_has_read_its_job() -> None:
    with pytest.raises(UserError, match=r"exit code 7 .* job 1 of 2"):
        list(run_jobs(dies_on_import.work, ["a", "b"], workers=1))


def test_a_worker_that_ends_between_jobs() -> None:
    """As when the system, short of memory, kills it while it waits for its next job."""

    def go() -> None:
        for event in run_jobs(jobs.who_and_threads, ["a", "b"], workers=1):
            if event.kind == "done":
                pid = event.value[0]
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until it is dead

    with pytest.raises(UserError, match=r"exit code -9 .* job 2 of 2"):
        go()
