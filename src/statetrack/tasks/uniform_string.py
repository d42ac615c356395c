"""What parity, cycle navigation and even pairs share: uniform symbols and one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from statetrack.tasks.base import Ints, PrefixTask


@dataclass(frozen=True)
class UniformString(PrefixTask):
    """Independent uniform symbols, tokens 1 and up.

    Length counts the answer, as in the paper: a sequence of length L has L - 1 symbols, and the
    answer is asked at the last of them.
    """

    metric = "answer"
    min_length = 2
    symbols: ClassVar[tuple[str, ...]]

    @property
    def answers(self) -> tuple[str, ...]:
        """The answers, by default the symbols."""
        return self.symbols

    @property
    def vocab(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("PAD", *self.symbols, *self.answers)))

    @property
    def chance(self) -> float:
        return 1 / len(self.answers)

    def input_size(self, length: int) -> int:
        return length - 1

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        return rng.integers(1, 1 + len(self.symbols), (len(lengths), size))
