"""Parity of the number of ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statetrack.automata import DFA
from statetrack.tasks.base import Floats, Ints, register
from statetrack.tasks.machines import walk_on_cycle
from statetrack.tasks.uniform_string import UniformString


@register
@dataclass(frozen=True)
class Parity(UniformString):
    """The sum of bits modulo 2.

    Token 1 is the bit 0 and token 2 the bit 1, in inputs and answers; 0 is padding. A sequence of
    length L has L - 1 bits, as length counts the answer (see UniformString).
    """

    family = "parity"
    examples = ("parity",)
    about = "the number of ones modulo 2"
    symbols = ("0", "1")

    def dense_targets(self, tokens: Ints) -> Ints:
        return 1 + np.cumsum(tokens == 2, axis=1) % 2

    def majority(self, low: int, high: int | None = None) -> float:
        """Return 1/2: even and odd sums of uniform bits are equally frequent."""
        self.check_lengths(low, low if high is None else high)
        return 1 / 2

    def answer_majorities(self, max_length: int) -> Floats:
        return np.full(self.input_size(max_length), 1 / 2)

    def automaton(self) -> DFA | None:
        """Two states; a word is accepted if it has an odd number of ones."""
        return walk_on_cycle(self.symbols, (0, 1), 2, accept=1)
