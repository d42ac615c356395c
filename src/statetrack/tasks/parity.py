"""Parity: is the number of ones even or odd?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from statetrack.automata import DFA
from statetrack.config import option
from statetrack.tasks.base import Ints, PrefixTask, register


@register
@dataclass(frozen=True)
class Parity(PrefixTask):
    """Token 1 is the bit 0, token 2 the bit 1; the answer, 1 or 2 likewise, is their sum mod 2.

    Length counts the answer, as in the paper: a sequence of length L has L - 1 bits, and the
    prediction is made on the last of them.
    """

    family: ClassVar[str] = "parity"
    examples: ClassVar[tuple[str, ...]] = ("parity",)
    about: ClassVar[str] = "the number of ones modulo 2"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "answer"

    name: str = option("parity", "which task of its family")

    @property
    def vocab(self) -> tuple[str, ...]:
        return ("PAD", "0", "1")

    @property
    def pad(self) -> int:
        return 0

    @property
    def chance(self) -> float:
        return 0.5

    @property
    def min_length(self) -> int:
        return 2

    def input_size(self, length: int) -> int:
        return length - 1

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        return rng.integers(1, 3, (len(lengths), size))

    def dense_targets(self, tokens: Ints) -> Ints:
        return 1 + np.cumsum(tokens == 2, axis=1) % 2

    def automaton(self) -> DFA:
        """Two states; a word is accepted if it has an odd number of ones."""
        return DFA(("0", "1"), np.array([[0, 1], [1, 0]]), 0, np.array([False, True]))
