"""The regular tasks of the Chomsky hierarchy suite."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statetrack.automata import DFA
from statetrack.tasks.base import Ints, register
from statetrack.tasks.chomsky import ChomskyTask, gather
from statetrack.tasks.expressions import Symbols, flat_expressions, running_values
from statetrack.tasks.machines import first_and_last, sum_of_products, walk_on_cycle


@register
@dataclass(frozen=True)
class EvenPairs(ChomskyTask, task="even_pairs", level="regular"):
    """Class 1 if the number of 01 and 10 is odd, that is, if the first bit and the last differ."""

    about = "whether the first bit differs from the last"

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return np.where(gather(inputs, sizes[:, None] - 1) == inputs[:, :1], 0, 1)

    def automaton(self) -> DFA | None:
        """Five states: nothing read, or the first bit and the last."""
        return first_and_last(self.symbols, "0", "1")


@register
@dataclass(frozen=True)
class ParityCheck(ChomskyTask, task="parity_check", level="regular"):
    """The number of ones modulo 2."""

    about = "the number of ones modulo 2"

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return (inputs == 1).sum(1, keepdims=True) % 2

    def automaton(self) -> DFA | None:
        """Two states; a word is accepted if it has an odd number of ones."""
        return walk_on_cycle(self.symbols, (0, 1), 2, accept=1)


@register
@dataclass(frozen=True)
class CycleNavigation(ChomskyTask, task="cycle_navigation", level="regular"):
    """The position on a cycle of 5, from 0; tokens 0, 1, 2 are steps of -1, 0, 1."""

    about = "the position after steps on a cycle"
    symbols = ("-1", "0", "+1")
    classes = 5

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        steps = np.where(inputs == 2, 1, 0) - (inputs == 0)
        return steps.sum(1, keepdims=True) % 5

    def automaton(self) -> DFA | None:
        return walk_on_cycle(self.symbols, (-1, 0, 1), 5)


@register
@dataclass(frozen=True)
class ModularArithmetic(ChomskyTask, task="modular_arithmetic", level="regular"):
    """Digits joined by + - *, modulo 5. An even length has one token less. BLANK never occurs."""

    about = "the value of a sum of products modulo 5"
    symbols = ("0", "1", "2", "3", "4", "+", "-", "*", "BLANK")
    classes = 5

    ids = Symbols(5, zero=0, plus=5, minus=6, times=7)

    def input_sizes(self, lengths: Ints) -> Ints:
        return (lengths - 1) // 2 * 2 + 1

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        return flat_expressions(rng, len(sizes), width, self.ids)

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return gather(running_values(inputs, self.ids), sizes[:, None] - 1)

    def automaton(self) -> DFA | None:
        """50 states and a sink; BLANK is not a symbol."""
        return sum_of_products(5)
