"""Figure 8: addition modulo 60; and modulo 3 and 5 with two reflections per token or layer."""

from __future__ import annotations

from dataclasses import replace

from statetrack.recipes.recipe import Results, Settings
from statetrack.recipes.word_problems import FIGURE_4, Model, Problem, make_job, seeds_of
from statetrack.sweep.job import Job

ONE = Problem(
    "Z60", "Z60", "Z60", 32, (32, 64, 128), 256,
    finding="the wider range helps, Mamba [-1,1] is best; no clean length generalisation",
)  # fmt: skip
TWO = Problem(
    "Z60x2", "Z60, 2 tokens per element", "Z60", 32, (32, 64, 128), 256,
    {"tokens_per_element": 2},
    finding="two tokens help marginally",
)  # fmt: skip
Z3 = Problem("Z3", "Z3", "Z3", 32, (32, 64, 128, 1000), 256)
Z5 = Problem("Z5", "Z5", "Z5", 32, (32, 64, 128, 1000), 256)
FIGURE = (ONE, TWO)
PUBLISHED_SEEDS = 1
LINES = tuple(replace(model, steps=400) for model in FIGURE_4)


def _both(model: Model) -> tuple[Model, ...]:
    return replace(model, neg=False), model


# two reflections per token in one layer (Theorem 3), or one in each of two layers (Theorem 6)
ROTATIONS: dict[str, tuple[Model, ...]] = {
    "Z3": _both(
        Model("delta_product", True, 1, factors=2, steps=800, published=False, harden=True,
              width=32, step_ms=40)
    ),
    "Z5": _both(
        Model("delta_product", True, 1, factors=2, steps=2000, published=False, harden=True,
              width=32, step_ms=40)
    ),
}  # fmt: skip
LAYERS = _both(Model("delta_net", True, 2, steps=1000, published=False, step_ms=60))
CYCLIC = (Z3, Z5)


def models(problem: Problem) -> tuple[Model, ...]:
    """Return the models of a problem."""
    return LINES if problem in FIGURE else (*ROTATIONS[problem.key], *LAYERS)


def jobs_of(problem: Problem, model: Model, settings: Settings) -> list[Job]:
    """Return the jobs of a model, one for each seed."""
    seeds = seeds_of(settings, PUBLISHED_SEEDS if problem in FIGURE else 3)
    return [make_job(problem, model, settings, seed, spectrum=True) for seed in seeds]


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List the runs on Z60, Z3 and Z5."""
    return [
        job
        for problem in (*FIGURE, *CYCLIC)
        for model in models(problem)
        for job in jobs_of(problem, model, settings)
    ]
