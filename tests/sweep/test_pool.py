"""Jobs side by side in processes. Every worker costs the time to load torch: they are few."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from statetrack.errors import UserError
from statetrack.sweep.pool import cores, run_all, run_jobs
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


WRONG = [
    pytest.param("mistake", UserError, r"^the length must be at least 2; got 1$", id="mistake"),
    pytest.param("disk", UserError, r"No space left on device.*/somewhere", id="full disk"),
    pytest.param("bug", RuntimeError, r"(?s)in fail.*ZeroDivisionError: a bug", id="bug"),
    pytest.param("3", UserError, r"exit code 3;", id="sudden end"),
]


@pytest.mark.parametrize(("job", "error", "message"), WRONG)
def test_run_all_raises_what_goes_wrong_in_a_job(
    job: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(run_all(jobs.fail, [job, "4"], workers=1))


def test_a_failing_job_or_a_dead_worker_does_not_end_the_others() -> None:
    todo = ["mistake", "3", "bug"]
    ends = {}
    for event in run_jobs(jobs.fail, todo, workers=1):
        if event.kind != "start":
            ends[event.job] = (event.kind, type(event.value))
            if event.job == 2:  # jobs may be added to the end
                todo.append("disk")
    assert ends[0] == ("failed", UserError)
    assert ends[1] == ("died", UserError)
    assert ends[2] == ("failed", RuntimeError)
    assert ends[3] == ("failed", UserError)


def test_a_worker_that_ends_before_it_has_read_its_job() -> None:
    events = list(run_jobs(dies_on_import.work, ["a", "b"], workers=1))
    assert [(e.job, e.kind) for e in events if e.kind != "start"] == [(0, "died"), (1, "died")]
    assert "exit code 7" in str(events[-1].value)


def test_a_worker_that_ends_between_jobs() -> None:
    """As when the system, short of memory, kills it while it waits for its next job."""
    ends = []
    for event in run_jobs(jobs.who_and_threads, ["a", "b"], workers=1):
        if event.kind == "done":
            pid = event.value[0]
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until it is dead
        if event.kind != "start":
            ends.append((event.job, event.kind))
    assert ends == [(0, "done"), (1, "died")]
