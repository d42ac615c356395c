"""Cycle navigation and even pairs, as in the code of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from statetrack.config import at_least, option
from statetrack.tasks.base import Ints, PrefixTask, register


@register
@dataclass(frozen=True)
class CycleNavigation(PrefixTask):
    """Steps on a cycle: 1 stays, 2 goes forward, 3 back; 4 + the position is asked, first 0.

    Length counts the answer: a sequence of length L has L - 1 steps, and the prediction is made on
    the last of them.
    """

    family: ClassVar[str] = "cycle navigation"
    examples: ClassVar[tuple[str, ...]] = ("cycle_navigation",)
    about: ClassVar[str] = "the position after steps on a cycle"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "answer"

    name: str = option("cycle_navigation", "which task of its family")
    cycle_size: int = option(5, "how many positions the cycle has")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("cycle_size", self.cycle_size, 2)

    @property
    def vocab(self) -> tuple[str, ...]:
        return ("PAD", "stay", "forward", "back", *map(str, range(self.cycle_size)))

    @property
    def pad(self) -> int:
        return 0

    @property
    def chance(self) -> float:
        return 1 / self.cycle_size

    @property
    def min_length(self) -> int:
        return 2

    def input_size(self, length: int) -> int:
        return length - 1

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        return rng.integers(1, 4, (len(lengths), size))

    def dense_targets(self, tokens: Ints) -> Ints:
        steps = np.where(tokens == 2, 1, 0) - (tokens == 3)
        return 4 + np.cumsum(steps, axis=1) % self.cycle_size


@register
@dataclass(frozen=True)
class EvenPairs(PrefixTask):
    """Tokens 1 and 2: is the number of neighbours that differ even (1) or odd (2)?

    It is even if the first token and the last are the same. Length counts the answer: a sequence
    of length L has L - 1 tokens, and the prediction is made on the last of them.
    """

    family: ClassVar[str] = "even pairs"
    examples: ClassVar[tuple[str, ...]] = ("even_pairs",)
    about: ClassVar[str] = "whether the first token is also the last"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "answer"

    name: str = option("even_pairs", "which task of its family")

    @property
    def vocab(self) -> tuple[str, ...]:
        return ("PAD", "a", "b")

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
        return 1 + np.where(tokens == tokens[:, :1], 0, 1)
