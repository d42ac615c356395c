"""Sweeps in processes of their own, which tests start and kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from statetrack.files import LOCK
from statetrack.sweep.engine import SweepEvent, run_sweep
from tests.conftest import ROOT
from tests.sweep.small import slow_jobs

LONG = 300  # seconds after which a test gives up


def start(folder: Path, kind: str = "local") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.sweep.processes", str(folder), kind]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def worker_of(job: Path, not_this: int = 0) -> int:
    """Wait until a job is in the middle of training; return the process that does it."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        with suppress(OSError, ValueError):
            pid = int(json.loads((job / LOCK).read_text())["pid"])
            if pid != not_this and any((job / "run" / "checkpoints").glob("*.json")):
                return pid
        time.sleep(0.02)
    raise TimeoutError(job)


def show(event: SweepEvent) -> None:
    if event.kind != "progress":
        print(json.dumps([event.kind, event.job.name, event.error]), flush=True)


if __name__ == "__main__":
    options = {"cluster": "local"} if sys.argv[2] == "slurm" else None
    run_sweep(
        Path(sys.argv[1]),
        lambda results: slow_jobs(),
        workers=1,
        engine=sys.argv[2],  # type: ignore[arg-type]
        engine_options=options,
        on_event=show,
    )
