"""One measurement in a process of its own: python -m benchmarks.ops.worker JSON."""

from __future__ import annotations

from typing import Any

from benchmarks.ops.extras import EXTRAS
from benchmarks.ops.measure import measure
from benchmarks.ops.rows import ROWS
from benchmarks.timing import Progress
from benchmarks.worker import Job, serve


def run(job: Job, say: Progress) -> dict[str, Any]:
    """Measure what `job` says."""
    name, environment = job["row"], job["environment"]
    if name in EXTRAS:
        return EXTRAS[name](environment, job["rounds"], say)
    row = ROWS[name]
    candidates = [c for c in row.candidates if c.environment in (None, environment)]
    found = measure(row, candidates, job["rounds"], say)
    return {**found, "title": row.title, "flops": row.flops, "formula": row.formula}


if __name__ == "__main__":
    serve(run)
