"""Made-up results of jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statetrack.recipes.recipe import Recipe, Results, Settings
from statetrack.sweep.job import Job
from statetrack.training import length_range


def result(job: Job, score: float) -> dict[str, Any]:
    """What the engine writes for a job whose scaled accuracy is `score` at every length."""
    training = job.config.training

    def measured(low: int, high: int) -> dict[str, Any]:
        accuracy = dict.fromkeys(("score", "scaled", "token_accuracy", "majority"), score)
        return {"min_length": low, "max_length": high, "low": score, "high": score, **accuracy}

    ranges = {text: measured(*length_range(text)) for text in job.lengths}
    curve = {"lengths": [3, 40], "accuracy": [score, score], "scaled": [score, score]}
    spectrum = {"layers": [{"real": [1.0, -1.0], "imag": [0.0, 0.0]}, None]}
    steps = [training.eval_every, training.steps] if training.eval_every else []
    validation = [
        {"step": step, **measured(*length_range(text))}
        for step in dict.fromkeys(steps)
        for text in training.eval_lengths
    ]
    return {
        "status": "done", "error": None, "key": job.key, "name": job.name, "seed": training.seed,
        "parameters": 1234, "stopped": None, "cpu_seconds": 2.0, "validation": validation,
        "trained": {"evaluations": ranges, "curve": None if job.curve is None else curve},
        "learning": {"step": [1, 2], "loss": [1.0, 0.5], "accuracy": [0.5, 1.0]},
        "spectrum": spectrum if job.spectrum else None,
        "environment": {"cpu": "made up"},
    }  # fmt: skip


def failed(job: Job) -> dict[str, Any]:
    """What the engine writes for a job that failed."""
    return {"status": "failed", "error": "diverged", "key": job.key, "name": job.name}


def run(
    recipe: Recipe, settings: Settings, score: Callable[[Job], float | None]
) -> dict[str, dict[str, Any]]:
    """Give every job of a recipe a made-up result, in rounds as the engine does."""
    done: dict[str, dict[str, Any]] = {}
    while True:
        fresh = [j for j in recipe.jobs(settings, Results(done)) if j.key not in done]
        if not fresh:
            return done
        for job in fresh:
            value = score(job)
            done[job.key] = failed(job) if value is None else result(job, value)
