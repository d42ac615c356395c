"""What parity, cycle navigation and even pairs share: a string of uniform symbols, one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from statetrack.tasks.base import Ints, PrefixTask


@dataclass(frozen=True)
class UniformString(PrefixTask):
    """Independent uniform symbols, tokens 1 and up.

    Length counts the answer, as in the paper: a sequence of length L has L - 1 symbols, and the
    prediction is made on the last of them.
    """

    metric: ClassVar[Literal["answer", "sequence", "token"]] = "answer"
    symbols: ClassVar[tuple[str, ...]]

    @property
    def answers(self) -> tuple[str, ...]:
        """What is answered, in the order of its classes; by default the symbols."""
        return self.symbols

    @property
    def vocab(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("PAD", *self.symbols, *self.answers)))

    @property
    def pad(self) -> int:
        return 0

    @property
    def chance(self) -> float:
        return 1 / len(self.answers)

    @property
    def min_length(self) -> int:
        return 2

    def input_size(self, length: int) -> int:
        return length - 1

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        return rng.integers(1, 1 + len(self.symbols), (len(lengths), size))
