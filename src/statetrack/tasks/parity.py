"""Parity: is the number of ones even or odd?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from statetrack.automata import DFA
from statetrack.config import option
from statetrack.tasks.base import Floats, Ints, register
from statetrack.tasks.machines import walk_on_cycle
from statetrack.tasks.uniform_string import UniformString


@register
@dataclass(frozen=True)
class Parity(UniformString):
    """Token 1 is the bit 0, token 2 the bit 1; the answer, 1 or 2 likewise, is their sum mod 2.

    Length counts the answer, as in the paper: a sequence of length L has L - 1 bits, and the
    prediction is made on the last of them.
    """

    family: ClassVar[str] = "parity"
    examples: ClassVar[tuple[str, ...]] = ("parity",)
    about: ClassVar[str] = "the number of ones modulo 2"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1")

    name: str = option("parity", "which task of its family")

    def dense_targets(self, tokens: Ints) -> Ints:
        return 1 + np.cumsum(tokens == 2, axis=1) % 2

    def majority(self, low: int, high: int | None = None) -> float:
        """1/2: of uniform bits, even and odd sums are equally frequent at every length."""
        self.check_lengths(low, low if high is None else high)
        return 1 / 2

    def answer_majorities(self, max_length: int) -> Floats:
        return np.full(self.input_size(max_length), 1 / 2)

    def automaton(self) -> DFA | None:
        """Two states; a word is accepted if it has an odd number of ones."""
        return walk_on_cycle(self.symbols, (0, 1), 2, accept=1)
