"""What is known of the languages with a name, and random automata."""

from __future__ import annotations

import numpy as np

from benchmarks.languages import LANGUAGES, lively_word, random_minimal
from statetrack.automata import DFA

__all__ = [
    "LANGUAGES",
    "ONE_LAYER",
    "SHORTER",
    "STAR_FREE",
    "lively_word",
    "random_dfa",
    "random_minimal",
]

STAR_FREE = (
    "tomita1", "tomita2", "tomita4", "tomita7", "(ab)*", "a*b*", "[ab]*aba[ab]*", "dyck1_depth3",
    "flip_flop",
)  # fmt: skip
# of at least one target; with gates of 0 and 1 only, SHORTER takes more
ONE_LAYER = (
    "parity", "Z3", "Z5", "Z60", "S3", "S5", "A5", "D12", "tomita1", "tomita2", "tomita5",
    "tomita6", "(ab)*", "dyck1_depth3", "flip_flop",
)  # fmt: skip
SHORTER = ("(ab)*", "tomita2", "dyck1_depth3")


def random_dfa(rng: np.random.Generator, states: int, symbols: int = 2) -> DFA:
    delta = rng.integers(states, size=(states, symbols))
    return DFA(tuple("abcd"[:symbols]), delta, 0, rng.random(states) < 0.5)
