"""Controls that need memory but no state tracking: associative recall, copying, induction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from statetrack.config import option
from statetrack.errors import UserError
from statetrack.tasks.base import IGNORE, MAX_KIND, Ints, Task, register


def names(letter: str, count: int) -> list[str]:
    """Name `count` tokens of a kind: k0, k1, ..."""
    return [f"{letter}{i}" for i in range(count)]


def distinct(rng: np.random.Generator, rows: int, choices: int, count: int) -> Ints:
    """Draw [rows, count] numbers below `choices`, distinct within a row, all orders alike."""
    drawn = np.full((rows, count), -1)
    for column, top in enumerate(range(choices - count, choices)):  # Floyd's algorithm
        number = rng.integers(0, top + 1, rows)
        taken = (drawn[:, :column] == number[:, None]).any(axis=1)
        drawn[:, column] = np.where(taken, top, number)
    return rng.permuted(drawn, axis=1)


@register
@dataclass(frozen=True)
class MultiQueryRecall(Task):
    """Multi-query associative recall, after zoology (arXiv:2312.04927).

    A sequence has `pairs` pairs of a key and its value, then fillers, among which every key occurs
    once more, with its value as target. The keys of a sequence are distinct; values are uniform. As
    in zoology, position g = 1, 2, ... after the pairs is queried with weight g^(power_a - 1): 1 is
    uniform, less moves queries closer to the pairs. Unlike there, every position may be queried,
    not only every other one, and fillers are tokens of their own. Length counts tokens.
    """

    family = "associative recall"
    examples = ("mqar",)
    about = "the values of keys, from pairs given first"
    metric = "token"

    pairs: int = option(8, "pairs of a key and a value", low=1, high=MAX_KIND)
    keys: int = option(64, "keys in the vocabulary", low=1, high=MAX_KIND)
    values: int = option(64, "values in the vocabulary", low=2, high=MAX_KIND)
    fillers: int = option(1, "fillers in the vocabulary", low=1, high=MAX_KIND)
    power_a: float = option(0.01, "the power law of the queries' positions; 1 is uniform")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys < self.pairs:
            raise UserError(f"{self.pairs} pairs need as many keys; got {self.keys}")
        if not 0 < self.power_a <= 1:
            raise UserError(f"power_a must be above 0 and at most 1; got {self.power_a!r}")

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        kinds = (("k", self.keys), ("v", self.values), ("f", self.fillers))
        return ("PAD", *(name for kind in kinds for name in names(*kind)))

    @property
    def chance(self) -> float:
        return 1 / self.values

    @property
    def min_length(self) -> int:
        return 3 * self.pairs

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        rows, context = len(lengths), 2 * self.pairs
        first_filler = 1 + self.keys + self.values
        keys = 1 + distinct(rng, rows, self.keys, self.pairs)
        tokens = rng.integers(first_filler, first_filler + self.fillers, (rows, size))
        tokens[:, 0:context:2] = keys
        tokens[:, 1:context:2] = rng.integers(1 + self.keys, first_filler, (rows, self.pairs))
        # the least of exponential variables: positions without replacement, by weight
        weights = np.arange(1, size - context + 1) ** (self.power_a - 1)
        clocks = rng.exponential(size=(rows, size - context)) / weights
        clocks[np.arange(context, size) >= lengths[:, None]] = np.inf
        places = np.argpartition(clocks, self.pairs - 1, axis=1)[:, : self.pairs]
        places = rng.permuted(places, axis=1)  # assigned to the pairs at random
        np.put_along_axis(tokens, context + places, keys, axis=1)
        return tokens

    def targets(self, tokens: Ints) -> Ints:
        context = 2 * self.pairs
        targets = np.full_like(tokens, IGNORE)
        if tokens.shape[1] > context:
            keys = np.where(tokens <= self.keys, tokens, 0)
            values = np.full((len(tokens), 1 + self.keys), IGNORE)
            np.put_along_axis(values, keys[:, 0:context:2], tokens[:, 1:context:2], axis=1)
            values[:, 0] = IGNORE  # for tokens that are not keys
            targets[:, context:] = np.take_along_axis(values, keys[:, context:], axis=1)
        return targets


@dataclass(frozen=True)
class SymbolTask(Task):
    """Uniform symbols among a few special tokens."""

    special: ClassVar[tuple[str, ...]]

    symbols: int = option(16, "symbols besides the special tokens", low=2, high=MAX_KIND)

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        return ("PAD", *self.special, *names("s", self.symbols))

    @property
    def chance(self) -> float:
        return 1 / self.symbols


@register
@dataclass(frozen=True)
class Copying(SymbolTask):
    """A random string, a separator, then blanks, whose targets are the string again.

    Length counts the symbols of the string; an input of length L has 2 L + 1 tokens.
    """

    family = "copying"
    examples = ("copying",)
    about = "a string again, after a separator"
    metric = "token"

    special = ("SEP", "BLANK")

    def input_size(self, length: int) -> int:
        return 2 * length + 1

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        symbols = rng.integers(3, 3 + self.symbols, (len(lengths), int(lengths.max())))
        tokens = np.full((len(lengths), size), 2)
        tokens[:, : symbols.shape[1]] = symbols
        position, end = np.arange(size), lengths[:, None]
        return np.where(position < end, tokens, np.where(position == end, 1, 2))

    def targets(self, tokens: Ints) -> Ints:
        if not tokens.shape[1]:
            return tokens
        separator = tokens == 1
        end = np.where(separator.any(axis=1), separator.argmax(axis=1), tokens.shape[1])[:, None]
        source = np.arange(tokens.shape[1]) - end - 1
        asked = (source >= 0) & (source < end) & (tokens == 2)
        return np.where(asked, np.take_along_axis(tokens, source.clip(0), axis=1), IGNORE)


@register
@dataclass(frozen=True)
class Induction(SymbolTask):
    """A special token in a random sequence, and again at its end; the answer is what followed it.

    Symbols are uniform, and so is the position of the special token. Length counts tokens.
    """

    family = "induction"
    examples = ("induction",)
    about = "what followed a special token"
    metric = "answer"
    min_length = 3

    special = ("SPECIAL",)

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        tokens = rng.integers(2, 2 + self.symbols, (len(lengths), size))
        places = np.stack([rng.integers(0, lengths - 2), lengths - 1], axis=1)
        np.put_along_axis(tokens, places, 1, axis=1)
        return tokens

    def targets(self, tokens: Ints) -> Ints:
        if not tokens.shape[1]:
            return tokens
        special = tokens == 1
        follower = (special.argmax(axis=1) + 1).clip(max=tokens.shape[1] - 1)[:, None]
        again = special & (np.cumsum(special, axis=1) > 1)
        return np.where(again, np.take_along_axis(tokens, follower, axis=1), IGNORE)
