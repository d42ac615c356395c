"""Cycle navigation and even pairs, as in the code of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from statetrack.automata import DFA
from statetrack.config import option, within
from statetrack.tasks.base import MAX_KIND, Ints, register
from statetrack.tasks.machines import first_and_last, walk_on_cycle
from statetrack.tasks.uniform_string import UniformString


@register
@dataclass(frozen=True)
class CycleNavigation(UniformString):
    """Steps on a cycle: 1 stays, 2 goes forward, 3 back; 4 + the position is asked, first 0.

    Length counts the answer: a sequence of length L has L - 1 steps, and the prediction is made on
    the last of them.
    """

    family: ClassVar[str] = "cycle navigation"
    examples: ClassVar[tuple[str, ...]] = ("cycle_navigation",)
    about: ClassVar[str] = "the position after steps on a cycle"
    symbols: ClassVar[tuple[str, ...]] = ("stay", "forward", "back")

    name: str = option("cycle_navigation", "which task of its family")
    cycle_size: int = option(5, "how many positions the cycle has")

    def __post_init__(self) -> None:
        super().__post_init__()
        within("cycle_size", self.cycle_size, 2, MAX_KIND)

    @property
    def answers(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.cycle_size)))

    def dense_targets(self, tokens: Ints) -> Ints:
        steps = np.where(tokens == 2, 1, 0) - (tokens == 3)
        return 4 + np.cumsum(steps, axis=1) % self.cycle_size

    def automaton(self) -> DFA | None:
        """The positions as states."""
        return walk_on_cycle(self.symbols, (0, 1, -1), self.cycle_size)


@register
@dataclass(frozen=True)
class EvenPairs(UniformString):
    """Tokens 1 and 2: is the number of neighbours that differ even (1) or odd (2)?

    It is even if the first token and the last are the same. Length counts the answer: a sequence
    of length L has L - 1 tokens, and the prediction is made on the last of them.
    """

    family: ClassVar[str] = "even pairs"
    examples: ClassVar[tuple[str, ...]] = ("even_pairs",)
    about: ClassVar[str] = "whether the first token is also the last"
    symbols: ClassVar[tuple[str, ...]] = ("a", "b")

    name: str = option("even_pairs", "which task of its family")

    def dense_targets(self, tokens: Ints) -> Ints:
        return 1 + np.where(tokens == tokens[:, :1], 0, 1)

    def automaton(self) -> DFA | None:
        """The first token and the last, five states; its outputs are a for even and b for odd."""
        return first_and_last(self.symbols, *self.answers)
