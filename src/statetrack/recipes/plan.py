"""The runs of a reproduction and the CPU time that they are expected to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from statetrack.recipes.recipe import Recipe, Results, Settings
from statetrack.sweep.job import SweepJob


@dataclass(frozen=True)
class Row:
    """The runs of a recipe, those that are done, and the CPU seconds that the others take."""

    name: str
    runs: int
    done: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The runs of recipes; `total` counts a run that several of them share once."""

    recipes: tuple[Row, ...]
    total: Row
    workers: int
    longest: float  # expected seconds of the longest run

    @property
    def wall_seconds(self) -> float:
        """The expected time with all workers busy, or that of the longest run if it is more."""
        return max(self.total.seconds / self.workers, self.longest)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "wall_seconds": self.wall_seconds}


def expected_jobs(recipe: Recipe, settings: Settings, done: Mapping[str, Any]) -> list[SweepJob]:
    """List all jobs of a recipe, including those that depend on results of other jobs.

    Missing results are replaced by failed ones, so that the recipe chooses a learning rate and
    lists its remaining runs. Their number does not depend on which rate it chooses.

    Args:
        recipe: the recipe.
        settings: of the reproduction.
        done: the results that exist, by the key of their job.
    """
    results = dict(done)
    while True:
        jobs = recipe.jobs(settings, Results(results))
        missing = [job for job in jobs if job.key not in results]
        if not missing:
            return list({job.key: job for job in jobs}.values())
        results |= {
            job.key: {"status": "failed", "error": "not run yet", "key": job.key, "name": job.name}
            for job in missing
        }


def make_plan(
    recipes: Sequence[Recipe], settings: Settings, done: Mapping[str, Any], workers: int
) -> Plan:
    """Plan the runs of some recipes.

    Args:
        recipes: those to run.
        settings: of the reproduction.
        done: the results that exist, by the key of their job.
        workers: runs side by side.
    """
    by_recipe = {r.name: expected_jobs(r, settings, done) for r in recipes}
    every = list({job.key: job for jobs in by_recipe.values() for job in jobs}.values())
    rows = tuple(_row(name, jobs, done) for name, jobs in by_recipe.items())
    left = [job.seconds for job in every if job.key not in done]
    return Plan(rows, _row("total", every, done), workers, max(left, default=0.0))


def _row(name: str, jobs: Sequence[SweepJob], done: Mapping[str, Any]) -> Row:
    left = [job for job in jobs if job.key not in done]
    return Row(name, len(jobs), len(jobs) - len(left), sum(job.seconds for job in left))
