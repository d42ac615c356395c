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
    "Tomita 1", "Tomita 2", "Tomita 4", "Tomita 7", "(ab)*", "a*b*", "contains aba", "Dyck",
    "flip-flop",
)  # fmt: skip
# of at least one target; with gates of 0 and 1 only, SHORTER takes more
ONE_LAYER = (
    "parity", "Z3", "Z5", "Z60", "S3", "S5", "A5", "D12", "Tomita 1", "Tomita 2", "Tomita 5",
    "Tomita 6", "(ab)*", "Dyck", "flip-flop",
)  # fmt: skip
SHORTER = ("(ab)*", "Tomita 2", "Dyck")


def random_dfa(rng: np.random.Generator, states: int, symbols: int = 2) -> DFA:
    delta = rng.integers(states, size=(states, symbols))
    return DFA(tuple("abcd"[:symbols]), delta, 0, rng.random(states) < 0.5)
