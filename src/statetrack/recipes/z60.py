"""Figure 8: addition modulo 60; and modulo 3 and 5 with two reflections per token or layer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from statetrack.recipes.recipe import Settings
from statetrack.recipes.selection import Entry
from statetrack.recipes.word_problem_report import cut_notes, word_problem_recipe
from statetrack.recipes.word_problems import FIGURE_4, Model, Problem, problem_entries
from statetrack.sweep.job import THEOREM_6

ONE = Problem(
    "Z60", "Z60", "Z60", 32, (32, 64, 128), 256,
    finding="the wider range helps, Mamba [-1,1] is best; no clean length generalisation",
)  # fmt: skip
TWO = Problem(
    "Z60x2", "Z60, 2 tokens per element", "Z60", 32, (32, 64, 128), 256,
    (("tokens_per_element", 2),),
    finding="two tokens help marginally",
)  # fmt: skip
Z3 = Problem("Z3", "Z3", "Z3", 32, (32, 64, 128, 1000), 256)
Z5 = Problem("Z5", "Z5", "Z5", 40, (40, 80, 128, 1000), 256, shortest=3)
FIGURE = (ONE, TWO)
PUBLISHED_SEEDS = 1
LINES = tuple(replace(model, steps=300) for model in FIGURE_4)


def _both(model: Model) -> tuple[Model, ...]:
    return replace(model, neg=False), model


# two reflections per token in one layer (Theorem 3), or one in each of two layers (Theorem 6)
_ROTATION = Model(
    "delta_product", True, 1, factors=2, steps=800, published=False, harden=True, width=32,
    step_ms=25,
)  # fmt: skip
# modulo 5 some seeds fail if sequences are long from the beginning; and in heads with more than two
# channels some count by slow rotations, which suffice at the training lengths and form no group
_GROWN = replace(
    _ROTATION, steps=2640, lr=5e-3, width=64, heads=32, beta_stretch=0.1,
    lengths=(2, 3, 4, 6, 9, 14, 20), step_ms=40,
)  # fmt: skip
ROTATIONS = {"Z3": _both(replace(_ROTATION, spectra=True)), "Z5": _both(_GROWN)}
LAYERS = _both(Model("delta_net", True, 2, steps=1000, published=False, step_ms=60))
# the weights of Theorem 6, trained further; [0,1] has no reflections, so there is no such solution
_COMPILED = replace(LAYERS[1], lr=1e-3, compiled=THEOREM_6)
STARTS = (_COMPILED, replace(_COMPILED, noise=0.02))
CYCLIC = (Z3, Z5)


def models(problem: Problem) -> tuple[Model, ...]:
    """Return the models of a problem."""
    return LINES if problem in FIGURE else (*ROTATIONS[problem.key], *LAYERS, *STARTS)


@cache
def entries(settings: Settings) -> dict[Problem, dict[Model, Entry]]:
    """Return every model of every problem."""
    return {
        p: problem_entries(p, models(p), settings, PUBLISHED_SEEDS if p in FIGURE else 3)
        for p in (*FIGURE, *CYCLIC)
    }


def _notes(settings: Settings) -> list[str]:
    notes = [
        "Figure 8 has Z60 with one and two tokens per element, one seed. Z3 and Z5 are not in the "
        "paper's figure: DeltaProduct with two factors per token can rotate a plane (Theorem 3), "
        "DeltaNet with two layers of one reflection each can count modulo any m (Theorem 6).",
        f"DeltaProduct on Z5 has {_GROWN.heads} heads with keys of two channels, so a head can "
        "rotate one plane only; its beta is stretched by 0.1, it is trained in stages of length "
        f"{', '.join(map(str, _GROWN.lengths))}, each until it is learned, and then at all "
        "lengths. With long sequences from the beginning some seeds do not learn it.",
        "From the compiled solution: the same model, whose first weights are those of Theorem 6 "
        "(statetrack.compiler.theorem6_model), exact before training, alone or with Gaussian noise "
        f"of standard deviation {STARTS[1].noise:g} on every weight.",
    ]
    if settings.scale == "laptop":
        notes.append(
            f"From the compiled solution the learning rate is {STARTS[0].lr:g} instead of "
            f"{LAYERS[0].lr:g}, chosen on seed 100; all else in training is the same."
        )
        notes += cut_notes(entries(settings))
    return notes


RECIPE = word_problem_recipe(
    "z60",
    ("fig8",),
    "Addition modulo 60 (Figure 8), 3 and 5",
    entries,
    _notes,
)
