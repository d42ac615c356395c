"""A program that runs a small sweep; the tests start and kill it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from statetrack.sweep.engine import SweepEvent, run_sweep
from tests.sweep.small import slow_jobs


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
