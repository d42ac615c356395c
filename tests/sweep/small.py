"""Small jobs of a sweep."""

from __future__ import annotations

from typing import Any

from statetrack.sweep.job import Job
from tests.training.small import small_config


def small_job(name: str = "small", *, seed: int = 0, **options: Any) -> Job:
    training = {k: options.pop(k) for k in list(options) if k not in Job.__dataclass_fields__}
    return Job(name, small_config(seed=seed, **training), **{"samples": 16, **options})


def slow_jobs() -> list[Job]:
    """Two jobs of a few seconds each, with many checkpoints on the way."""
    names = ("first", "second")
    return [small_job(n, seed=i, steps=800, checkpoint_every=100) for i, n in enumerate(names)]
