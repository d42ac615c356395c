"""A recipe: the runs of one table or figure, and the report that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from statetrack.config import one_of, unknown
from statetrack.report.document import Document
from statetrack.sweep.job import Job

Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Settings:
    """What the user chose for a reproduction."""

    scale: Scale = "laptop"
    early: bool = False  # the settings of the paper's early version instead of the final one
    seeds: int | None = None  # seeds per model; None: the scale's number

    def __post_init__(self) -> None:
        one_of("scale", self.scale, SCALES)


@dataclass
class Results:
    """The results of the jobs that are done, by their key."""

    by_key: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """Return the results of those of the jobs that are done, in order."""
        return [self.by_key[job.key] for job in jobs if job.key in self.by_key]

    def complete(self, jobs: Sequence[Job]) -> bool:
        """Whether all of the jobs are done."""
        return all(job.key in self.by_key for job in jobs)


@dataclass(frozen=True)
class Recipe:
    """The runs of one table or figure, and the report that they make.

    `jobs(settings, results)` lists all jobs that are known from the results so far: a learning rate
    that is chosen on some seeds decides on the jobs of the others. The engine asks again until it
    has run everything that is listed. `document(settings, results)` must work on partial results.
    """

    name: str
    aliases: tuple[str, ...]  # the paper's numbers: fig1, table3, ...
    title: str
    jobs: Callable[[Settings, Results], list[Job]]
    document: Callable[[Settings, Results], Document]


RECIPES: dict[str, Recipe] = {}


def register(recipe: Recipe) -> Recipe:
    """Add a recipe to those that `statetrack reproduce` knows."""
    RECIPES[recipe.name] = recipe
    return recipe


def find_recipe(name: str) -> Recipe:
    """Return a recipe by its name or one of its aliases."""
    for recipe in all_recipes():
        if name in (recipe.name, *recipe.aliases):
            return recipe
    names = [n for recipe in all_recipes() for n in (recipe.name, *recipe.aliases)]
    raise unknown("recipe", name, [*names, "all"])


def all_recipes() -> Iterator[Recipe]:
    """Yield every recipe, in the order of the paper."""
    yield from RECIPES.values()
