"""Do one job in its folder; result.json is written last.

An interrupted job resumes when it is run again.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statetrack.errors import UserError
from statetrack.files import LockedError, leftovers, read_json, write_json
from statetrack.sweep.environment import environment
from statetrack.sweep.job import SweepJob
from statetrack.sweep.pool import Report
from statetrack.training import Callback

RESULT_SCHEMA = 1
RESULT = "result.json"  # its presence means that the job is done, or has failed


def do_job(
    job: SweepJob,
    folder: Path,
    report: Report = lambda progress: None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Do a job, or the rest of it, and write its result.

    An error of the job itself (a wrong option, a loss that diverges) is its result. If the machine
    fails, for example because its disk is full, no result is written: the job can be done later.

    Args:
        job: The job.
        folder: Its folder in the sweep, which no other process may write to.
        report: Called repeatedly with the `Progress` of training.
        callbacks: Of training.

    Returns:
        The content of result.json.

    Raises:
        OSError, MemoryError: the job was cut short.
    """
    stopwatch = Stopwatch()
    environment()  # it reads the commit once, before another one can be checked out
    for file in leftovers(folder):
        file.unlink()
    try:
        facts = {"status": "done", "error": None, **job.measure(folder, report, callbacks)}
    except (OSError, MemoryError, LockedError):
        raise
    except UserError as error:
        facts = {"status": "failed", "error": str(error)}
    except Exception:  # a defect: the other jobs go on, and the result says where it is
        facts = {"status": "failed", "error": traceback.format_exc()}
    description = {
        "schema": RESULT_SCHEMA,
        "key": job.key,
        "name": job.name,
        **job.description(),
        "environment": environment(job.device),
    }
    result = {**description, **NO_MEASUREMENTS, **stopwatch.elapsed(), **facts}
    write_json(folder / RESULT, result)
    return result


def read_result(folder: Path) -> dict[str, Any]:
    """Read the result of a job from its folder.

    Measurements that the file lacks have the values of NO_MEASUREMENTS: an earlier version of this
    package may have written it.

    Raises:
        UserError: it cannot be read, has another schema or lacks a key.
    """
    path = folder / RESULT
    result = read_json(path)
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != RESULT_SCHEMA:
        raise UserError(f"{path} has schema {schema!r}; this version reads {RESULT_SCHEMA}")
    for name in ("key", "name", "seed", "status", "error"):
        if name not in result:
            raise UserError(f"{path} lacks the key {name!r}")
    return {**NO_MEASUREMENTS, **result}


# fields of a result that a failed job does not measure
NO_MEASUREMENTS: dict[str, Any] = {
    **dict.fromkeys(("parameters", "steps", "stopped", "train_loss", "train_accuracy")),
    **dict.fromkeys(("trained", "hardened", "harden", "learning", "spectrum")),
    "validation": [],
}


@dataclass
class Stopwatch:
    """The time since it was made."""

    def __post_init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def elapsed(self) -> dict[str, float]:
        """Return wall and CPU seconds."""
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return {"seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}
