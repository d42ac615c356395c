"""A demo with made-up results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statetrack.files import write_json
from statetrack.recipes.demo import Demo, Job

SCORES = (0.25, 1.0, 0.5)  # of the three seeds of each model on parity


def result(job: Job, score: float) -> dict[str, Any]:
    """What a worker returns: a curve that falls from 1 to `score` after length 40."""
    first = 2 if job.experiment == "parity" else 1
    lengths = list(range(first, job.longest + 1))
    return {
        "experiment": job.experiment,
        "model": job.title,
        "seed": job.config.training.seed,
        "run": f"runs/{job.folder.name}",
        "parameters": 12_345,
        "samples": job.samples,
        "lengths": lengths,
        "values": [1.0 if n <= 40 else score for n in lengths],
        "score": score,
        "seconds": 1.5,
    }


def demo(folder: Path, done: int | None = None) -> Demo:
    """A demo of which the first `done` jobs are done, or all."""
    this = Demo.start(1, folder)
    for index, job in list(enumerate(this.jobs))[:done]:
        score = SCORES[job.config.training.seed % 3]
        this.results[index] = result(job, score)
        job.folder.mkdir(parents=True)
        write_json(job.folder / "config.json", job.config.to_json())
    return this
