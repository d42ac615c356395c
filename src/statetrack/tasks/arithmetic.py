"""Modular arithmetic without and with brackets, as in the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statetrack.automata import DFA
from statetrack.config import option
from statetrack.tasks.base import IGNORE, MAX_KIND, Batch, Ints, PrefixTask, Task, register
from statetrack.tasks.expressions import (
    Symbols,
    answered_at,
    bracket_expressions,
    bracket_value_shares,
    bracket_values,
    flat_expressions,
    running_values,
)
from statetrack.tasks.machines import sum_of_products

EXACT_MAJORITY = 1 << 24  # bounds the work of an exact majority baseline


@register
@dataclass(frozen=True)
class ModularArithmetic(PrefixTask):
    """Digits joined by + - *, then =. The target at = is the value modulo m, as a digit.

    As in the paper, length counts the answer, and an even length means the next smaller odd one:
    `d + d =` has length 5 or 6. With dense supervision every digit has the value so far as target.
    """

    family = "modular arithmetic"
    examples = ("modular_arithmetic",)
    about = "the value of a sum of products modulo m"
    metric = "answer"
    min_length = 3

    prefixes_are_samples = False  # a prefix has no =
    equals = 4  # its id

    modulus: int = option(5, "m: the digits are 0 to m - 1", low=2, high=MAX_KIND)

    @property
    def vocab(self) -> tuple[str, ...]:
        return ("PAD", "+", "-", "*", "=", *map(str, range(self.modulus)))

    @property
    def symbols(self) -> Symbols:
        """The ids of digits and operators."""
        return Symbols(self.modulus, zero=5, plus=1, minus=2, times=3)

    @property
    def chance(self) -> float:
        return 1 / self.modulus

    def input_size(self, length: int) -> int:
        return (length + 1) // 2 * 2 - 2

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        tokens = flat_expressions(rng, len(lengths), size, self.symbols)
        tokens[np.arange(len(lengths)), (lengths + 1) // 2 * 2 - 3] = self.equals
        return tokens

    def dense_targets(self, tokens: Ints) -> Ints:
        asked = (tokens >= self.symbols.zero) | (tokens == self.equals)
        values = running_values(tokens, self.symbols)
        return np.where(asked, self.symbols.zero + values, IGNORE)

    def automaton(self) -> DFA | None:
        """2m^2 states and a sink; the outputs after a digit are the values. None for m > 70."""
        return sum_of_products(self.modulus)


@register
@dataclass(frozen=True)
class ModularArithmeticBrackets(Task):
    """A bracketed expression, then =. The target at = is the value modulo m, as a digit.

    As in the paper, length counts the answer and one PAD after it, and is at least 5: length L has
    max(L, 5) - 3 tokens of expression and the =.
    """

    family = "modular arithmetic with brackets"
    examples = ("modular_arithmetic_brackets",)
    about = "the value of a bracketed expression modulo m"
    metric = "answer"

    modulus: int = option(5, "m: the digits are 0 to m - 1", low=2, high=MAX_KIND)
    mult: bool = option(True, "whether * occurs besides + and -")

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*map(str, range(self.modulus)), "+", "-", "*", "(", ")", "=", "PAD")

    @property
    def symbols(self) -> Symbols:
        """The ids of digits, operators and brackets."""
        m = self.modulus
        return Symbols(m, zero=0, plus=m, minus=m + 1, times=m + 2, open=m + 3, close=m + 4)

    @property
    def equals(self) -> int:
        """The id of =."""
        return self.modulus + 5

    @property
    def pad(self) -> int:
        return self.modulus + 6

    @property
    def chance(self) -> float:
        return 1 / self.modulus

    def input_size(self, length: int) -> int:
        return max(length, 5) - 2

    def majority(self, low: int, high: int | None = None) -> float:
        """Return the greatest share of a value, exactly; measured if expressions are very long."""
        high = low if high is None else high
        self.check_lengths(low, high)
        if not self.mult:
            return self.chance  # sums and differences of uniform values are uniform
        longest = max(high, 5) - 3
        if longest * max(longest, self.modulus) * self.modulus > EXACT_MAJORITY:
            return max(self.chance, super().majority(low, high))
        sizes = np.maximum(np.arange(low, high + 1), 5) - 3
        return float(bracket_value_shares(self.modulus, longest)[sizes].mean(0).max())

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        return self.sample(rng, lengths).tokens

    def sample(self, rng: np.random.Generator, lengths: Ints) -> Batch:
        lengths = np.asarray(lengths, dtype=np.int64)
        self.check_lengths(int(lengths.min()), int(lengths.max()))
        sizes = np.maximum(lengths, 5) - 3
        tokens, values = bracket_expressions(
            rng, sizes, int(sizes.max()) + 1, self.symbols, self.mult, self.pad
        )
        return answered_at(tokens, sizes, self.equals, values, lengths)

    def targets(self, tokens: Ints) -> Ints:
        values = bracket_values(tokens, self.symbols)
        return np.where(tokens == self.equals, values[:, None], IGNORE)
