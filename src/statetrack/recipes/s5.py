"""Figures 4 and 7: word problems of S5 in four settings."""

from __future__ import annotations

from dataclasses import replace

from statetrack.recipes.recipe import Results, Settings
from statetrack.recipes.word_problems import FIGURE_4, Model, Problem, make_job, seeds_of
from statetrack.sweep.job import Job

FULL = Problem(
    "S5", "Full S5", "S5", 12, (12, 24, 48), 96, early_epochs=30,
    finding="every linear RNN is at 0 before length 30; the full matrix solves it and decays",
)  # fmt: skip
SWAPS = Problem(
    "swaps", "S5, only swaps", "S5_only_swaps", 32, (32, 64, 128, 256), 500, early_epochs=30,
    finding="DeltaNet [-1,1] with 1 layer is right to 500; [0,1] with 5 layers slightly past 32",
)  # fmt: skip
THREES = Problem(
    "threes", "S5, swaps and 3-permutations", "S5_up_to_3", 16, (16, 32, 64, 128), 256,
    finding="DeltaNet [-1,1] with 5 layers extrapolates well; all others drop",
)  # fmt: skip
FOUR = Problem(
    "four", "S5, 4 tokens per element", "S5", 48, (48, 96, 192), 384,
    {"tokens_per_element": 4},
    finding="DeltaNet [-1,1] with 5 layers extrapolates to about 200 tokens",
)  # fmt: skip
PROBLEMS = (FULL, SWAPS, THREES, FOUR)
PUBLISHED_SEEDS = 3


def _product(factors: int, **options: object) -> tuple[Model, ...]:
    made = Model("delta_product", True, 1, factors=factors, published=False, **options)  # type: ignore[arg-type]
    return replace(made, neg=False), made


# beside the lines of the figure: as many Householder factors per token as the elements need
ADDED: dict[str, tuple[Model, ...]] = {
    "S5": _product(4, start="S5_up_to_3", step_ms=65, harden=True),
    "threes": _product(2, steps=1500, step_ms=45, harden=True),
    "four": tuple(
        Model("delta_net", neg, 1, conv=4, start="S5_up_to_3", published=False, step_ms=45)
        for neg in (False, True)
    ),
}


def models(problem: Problem) -> tuple[Model, ...]:
    """Return the models of a setting, those of the paper's figure first."""
    return (*FIGURE_4, *ADDED.get(problem.key, ()))


def jobs_of(problem: Problem, model: Model, settings: Settings) -> list[Job]:
    """Return the jobs of a model, one for each seed."""
    seeds = seeds_of(settings, PUBLISHED_SEEDS)
    return [make_job(problem, model, settings, seed, spectrum=True) for seed in seeds]


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List the runs of the four settings."""
    return [
        job
        for problem in PROBLEMS
        for model in models(problem)
        for job in jobs_of(problem, model, settings)
    ]
