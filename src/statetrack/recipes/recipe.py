"""A recipe: the runs of one table or figure, and the report that they make."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from statetrack.config import changed, one_of, unknown, within
from statetrack.report.document import Document
from statetrack.report.results import environment_facts
from statetrack.sweep.job import Job, SweepJob

Scale = Literal["smoke", "laptop", "paper"]
Precision = Literal["bf16", "fp32"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp32")
SEEDS: dict[Scale, int] = {
    "smoke": 1,
    "laptop": 5,
    "paper": 3,
}  # per model, unless a recipe differs
MAX_SEEDS = 100  # per model
MAX_SIZE = 64  # largest mamba_conv and xlstm_layers
TRANSFORMER_HEADS = (1, 2, 4, 8, 16, 32)  # divide every width, the smallest being 64
ORDER = (
    "diagonal-parity", "states", "swaps", "chomsky", "s5", "z60", "language-models", "theorems",
    "length", "leaderboard",
)  # fmt: skip
"""The recipes in the order of the paper; each is a module of this package."""


@dataclass(frozen=True)
class Settings:
    """Options of a reproduction, as the user gave them.

    Those from `mamba_conv` on settle what the paper leaves open.
    """

    scale: Scale = "laptop"
    early: bool = False  # the settings of the paper's early version instead of the final one
    seeds: int | None = None  # seeds per model; None: the scale's number
    texts: tuple[str, ...] = ()  # text files or data folders on which language models are measured
    harness: tuple[str, ...] = ()  # folders of tasks on which language models are scored
    lm_precision: Precision = "bf16"  # in which language models are trained
    mamba_conv: int = 4  # its text says 4, its code has 1
    xlstm_layers: int = 3  # of mLSTM and sLSTM on modular arithmetic: 3, as the others, or 2
    transformer_heads: int = 4
    transformer_rope: bool = True  # rotary positions, or none

    def __post_init__(self) -> None:
        for name in ("texts", "harness"):  # lists, if read from a file
            object.__setattr__(self, name, tuple(getattr(self, name)))
        one_of("scale", self.scale, SCALES)
        one_of("lm_precision", self.lm_precision, PRECISIONS)
        for name in ("mamba_conv", "xlstm_layers"):
            within(name, getattr(self, name), 1, MAX_SIZE)
        one_of("transformer_heads", self.transformer_heads, TRANSFORMER_HEADS)
        if self.seeds is not None:
            within("seeds", self.seeds, 1, MAX_SEEDS)

    @property
    def reported_seeds(self) -> tuple[int, ...]:
        """The seeds that are reported: 0, 1, ..."""
        return tuple(range(SEEDS[self.scale] if self.seeds is None else self.seeds))


@dataclass
class Results:
    """The results of the jobs that are done, by their key."""

    by_key: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, jobs: Sequence[SweepJob]) -> list[dict[str, Any]]:
        """Return the results of those of the jobs that are done, in order."""
        return [self.by_key[job.key] for job in jobs if job.key in self.by_key]

    def complete(self, jobs: Sequence[SweepJob]) -> bool:
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
    jobs: Callable[[Settings, Results], Sequence[SweepJob]]
    document: Callable[[Settings, Results], Document]
    unusable: Callable[[], list[str]] = list  # says what is wrong with packages that it needs


RECIPES: dict[str, Recipe] = {}


def register(recipe: Recipe) -> Recipe:
    """Add a recipe to those that `statetrack reproduce` knows."""
    RECIPES[recipe.name] = recipe
    return recipe


def find_recipe(name: str) -> Recipe:
    """Return a recipe by its name or one of its aliases, in upper or lower case.

    Raises:
        UserError: there is none.
    """
    for recipe in all_recipes():
        if name.lower() in (recipe.name, *recipe.aliases):
            return recipe
    names = [n for recipe in all_recipes() for n in (recipe.name, *recipe.aliases)]
    raise unknown("recipe", name, [*names, "all"])


def all_recipes() -> Iterator[Recipe]:
    """Yield every recipe, in the order of the paper."""
    for name in ORDER:
        importlib.import_module(f"statetrack.recipes.{name.replace('-', '_')}")
    yield from sorted(RECIPES.values(), key=lambda recipe: [*ORDER, recipe.name].index(recipe.name))


def installed_recipes() -> tuple[list[Recipe], list[str]]:
    """Return the recipes that can run here, and a sentence for each that cannot."""
    found = list(all_recipes())
    left_out = [
        f"Left out: {recipe.name}, which needs the extra lm: {', '.join(unusable)} "
        '(pip install "statetrack[lm]").'
        for recipe in found
        if (unusable := recipe.unusable())
    ]
    return [recipe for recipe in found if not recipe.unusable()], left_out


def shortened(job: Job) -> Job:
    """Return the job with a training too short to learn anything, for the scale `smoke`."""
    t = job.config.training
    stages = tuple(replace(stage, steps=1) for stage in job.config.stages)
    training = replace(
        t,
        steps=len(stages) or 2,
        batch_size=min(t.batch_size, 4),
        dataset_size=None if t.dataset_size is None else 64,
        eval_every=1 if t.eval_every else 0,
        eval_samples=min(t.eval_samples, 8),
        log_every=1,
    )
    curve = None if job.curve is None else min(job.curve, 48)
    config = replace(job.config, training=training, stages=stages)
    return replace(job, config=config, curve=curve, samples=min(job.samples, 8), seconds=0.5)


def facts(
    name: str,
    settings: Settings,
    jobs: Sequence[SweepJob],
    results: Results,
    tuning: Collection[int] = (),
) -> dict[str, Any]:
    """Return the facts of a document: command, runs, seeds, CPU seconds and the environment.

    Args:
        name: of the recipe.
        settings: of the reproduction.
        jobs: all jobs that are known.
        results: of the runs that have ended.
        tuning: seeds that choose a learning rate and are not reported.
    """
    ended = results.of(jobs)
    failed = [f"{r['name']}: {r['error']}" for r in ended if r["status"] == "failed"]
    seeds = sorted({job.seed for job in jobs})
    tuned = {"tuning seeds": [seed for seed in seeds if seed in tuning]} if tuning else {}
    count = f"{len(ended) - len(failed)} of {len(jobs)} done"
    return {
        "command": command(name, settings),
        "runs": f"{count}, {len(failed)} failed" if failed else count,
        "failed": failed,
        "stopped early": sum(bool(r.get("stopped")) for r in ended),
        "seeds": [seed for seed in seeds if seed not in tuning],
        **tuned,
        "CPU seconds": round(sum(r.get("cpu_seconds") or 0.0 for r in ended)),
        **environment_facts(ended),
    }


def command(name: str, settings: Settings) -> str:
    """Return the command that repeats a reproduction."""
    words = ["statetrack", "reproduce", name, "--scale", settings.scale]
    for option, value in changed(settings).items():
        flag = option.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple | list):
            words += [f"--{flag}", *map(str, value)]
        elif option != "scale":
            words += [f"--{flag}", str(value)]
    return " ".join(words)
