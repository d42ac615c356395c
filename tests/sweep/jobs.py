"""What worker processes are given to do; in a module of its own, so that they can import it."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from statetrack import devices
from statetrack.errors import UserError
from statetrack.sweep.pool import Report


def double(job: int, report: Report) -> int:
    report(f"at {job}")
    return 2 * job


def who_and_threads(job: Any, report: Report) -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def double_or_hang(job: int | None, report: Report) -> int:
    if job is None:
        report(os.getpid())
        time.sleep(600)
        return 0
    return 2 * job


def fail(job: str, report: Report) -> None:
    if job == "mistake":
        raise UserError("the length must be at least 2; got 1")
    if job == "disk":
        raise OSError(28, "No space left on device", "/somewhere")
    if job == "bug":
        raise ZeroDivisionError("a bug")
    os._exit(int(job))


def preferred_gpu(job: Any, report: Report) -> int | None:
    time.sleep(1)  # so that no worker gets all jobs
    return devices._preferred_gpu
