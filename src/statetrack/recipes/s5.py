"""Figures 4 and 7: word problems of S5 in four settings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from statetrack.recipes.recipe import Settings
from statetrack.recipes.selection import Entry
from statetrack.recipes.stages import Growth
from statetrack.recipes.word_problem_report import cut_notes, word_problem_recipe
from statetrack.recipes.word_problems import FIGURE_4, Model, Problem, problem_entries

FULL = Problem(
    "S5", "Full S5", "S5", 12, (12, 24, 48), 96, early_epochs=30,
    finding="every linear RNN is at 0 before length 30 (early version: 20); the full matrix solves "
    "it and decays",
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
    "four", "S5, 4 tokens per element", "S5", 24, (24, 48, 96), 192,
    (("tokens_per_element", 4),),
    finding="DeltaNet [-1,1] with 5 layers extrapolates to about 200 tokens (early version: "
    "120); one of its three seeds fails",
)  # fmt: skip
PROBLEMS = (FULL, SWAPS, THREES, FOUR)
PUBLISHED_SEEDS = 3


def _product(factors: int, **options: object) -> tuple[Model, ...]:
    made = Model("delta_product", True, 1, factors=factors, published=False, **options)  # type: ignore[arg-type]
    return replace(made, neg=False), made


# beside the lines of the figure: as many Householder factors per token as the elements need
ADDED: dict[str, tuple[Model, ...]] = {
    "S5": _product(4, start="S5_up_to_3", lr=2e-3, heads=8, step_ms=65, harden=True),
    "threes": _product(2, steps=1500, step_ms=45, harden=True),
    # two layers: beta is computed without the convolution, so in a single layer all filler tokens
    # have the same beta
    "four": tuple(
        Model(
            "delta_net",
            neg,
            2,
            conv=4,
            start="S5_up_to_3",
            published=False,
            step_ms=60,
            growth=Growth(first=1500, each=600, last=1500, until=0.97),
        )
        for neg in (False, True)
    ),
}


def models(problem: Problem) -> tuple[Model, ...]:
    """Return the models of a setting, those of the paper's figure first."""
    return (*FIGURE_4, *ADDED.get(problem.key, ()))


@cache
def entries(settings: Settings) -> dict[Problem, dict[Model, Entry]]:
    """Return every model of every setting."""
    return {p: problem_entries(p, models(p), settings, PUBLISHED_SEEDS) for p in PROBLEMS}


def _notes(settings: Settings) -> list[str]:
    notes = [
        "Figure 4 is the best seed, Figure 7 all seeds. DeltaProduct, and DeltaNet with a "
        "convolution on 4 tokens per element, are not in the paper's figure: they have as many "
        "Householder factors per element as it needs.",
        "In stages: the inputs begin with those of S5_up_to_3 and grow by ten elements in the "
        "order of reflection length. A stage ends when three rows of metrics in a row have an "
        "accuracy of 0.98 (4 tokens per element: 0.97), or after its steps; the last one gets the "
        "steps that are left. With all elements at once the model stays at chance. The data of a "
        "run in stages are endless.",
    ]
    if settings.early and settings.scale == "paper":
        notes.append(
            "Early version: one seed, 30 epochs for two of the settings and 90 for the others. It "
            "does not name the two; here they are full S5 and only swaps."
        )
    if settings.scale == "laptop":
        notes += cut_notes(entries(settings))
    return notes


RECIPE = word_problem_recipe(
    "s5",
    ("fig4", "fig7"),
    "Word problems of S5 in four settings (Figures 4 and 7)",
    entries,
    _notes,
)
