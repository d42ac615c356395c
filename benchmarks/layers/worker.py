"""One layer in a process of its own: python -m benchmarks.layers.worker JSON."""

from __future__ import annotations

from typing import Any

from benchmarks.layers.measure import measure
from benchmarks.layers.shapes import shapes
from benchmarks.timing import Progress
from benchmarks.worker import Job, serve


def run(job: Job, say: Progress) -> dict[str, Any]:
    """Measure a layer at all of its shapes."""
    layer, environment, rounds = job["layer"], job["environment"], job["rounds"]
    found = []
    for shape in shapes(layer):
        say(shape.title)
        found.append(measure(layer, shape, environment, rounds, say))
    return {"shapes": found}


if __name__ == "__main__":
    serve(run)
