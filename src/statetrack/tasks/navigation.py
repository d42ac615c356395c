"""Cycle navigation and even pairs, as in the paper's code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statetrack.automata import DFA
from statetrack.config import option
from statetrack.tasks.base import MAX_KIND, Ints, register
from statetrack.tasks.machines import first_and_last, walk_on_cycle
from statetrack.tasks.uniform_string import UniformString


@register
@dataclass(frozen=True)
class CycleNavigation(UniformString):
    """Steps on a cycle from position 0: token 1 stays, 2 goes forward, 3 back.

    The answer is the position, as the token 4 + position.
    """

    family = "cycle navigation"
    examples = ("cycle_navigation",)
    about = "the position after steps on a cycle"
    symbols = ("stay", "forward", "back")

    cycle_size: int = option(5, "how many positions the cycle has", low=2, high=MAX_KIND)

    @property
    def answers(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.cycle_size)))

    def dense_targets(self, tokens: Ints) -> Ints:
        steps = np.where(tokens == 2, 1, 0) - (tokens == 3)
        return 4 + np.cumsum(steps, axis=1) % self.cycle_size

    def automaton(self) -> DFA | None:
        return walk_on_cycle(self.symbols, (0, 1, -1), self.cycle_size)


@register
@dataclass(frozen=True)
class EvenPairs(UniformString):
    """Tokens 1 and 2: the answer is 1 if the number of pairs of unequal neighbours is even, else 2.

    It is even if and only if the first token and the last are the same.
    """

    family = "even pairs"
    examples = ("even_pairs",)
    about = "whether the first token is also the last"
    symbols = ("a", "b")

    def dense_targets(self, tokens: Ints) -> Ints:
        return 1 + np.where(tokens == tokens[:, :1], 0, 1)

    def automaton(self) -> DFA | None:
        """Five states: nothing read, or the first token and the last. The output a means even."""
        return first_and_last(self.symbols, *self.answers)
