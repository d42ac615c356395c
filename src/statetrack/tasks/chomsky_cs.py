"""The context-sensitive tasks of the Chomsky hierarchy suite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from statetrack.tasks.base import Ints, register
from statetrack.tasks.chomsky import TERMINATOR, ChomskyTask, gather, uniform


@register
@dataclass(frozen=True)
class OddsFirst(ChomskyTask, task="odds_first", level="cs"):
    """The bits at positions 1, 3, 5, ..., then those at 0, 2, 4, ..., counted from 0.

    This is what the suite's code does; its description counts from 1.
    """

    about = "the bits at odd positions, then those at even ones"
    metric = "token"

    def output_sizes(self, lengths: Ints) -> Ints:
        return lengths

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        odd, position = sizes[:, None] // 2, np.arange(width)
        return gather(inputs, np.where(position < odd, 2 * position + 1, 2 * (position - odd)))


@register
@dataclass(frozen=True)
class DuplicateString(ChomskyTask, task="duplicate_string", level="cs"):
    """The bits, twice."""

    about = "the string twice over"
    metric = "token"

    def output_sizes(self, lengths: Ints) -> Ints:
        return 2 * lengths

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return gather(inputs, np.arange(width) % np.maximum(sizes, 1)[:, None])


@register
@dataclass(frozen=True)
class MissingDuplicateString(ChomskyTask, task="missing_duplicate_string", level="cs"):
    """A string of bits twice, with a GAP for one of them: which bit is missing?

    An odd length ends in END. An input of one token is the bit 1, and so is the answer.
    """

    about = "the bit missing in one of two copies"
    symbols = ("0", "1", "GAP", "END")

    gap = 2
    end = 3

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        half = np.maximum(sizes // 2, 1)[:, None]
        tokens = gather(uniform(rng, 2, sizes, width), np.arange(width) % half)
        tokens[np.arange(width) == rng.integers(0, 2 * half)] = self.gap
        tokens[np.arange(width) == 2 * half] = self.end
        tokens[sizes == 1, 0] = 1
        return tokens

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        half = np.maximum(sizes // 2, 1)[:, None]
        position = (inputs == self.gap).argmax(1)[:, None]
        other = gather(inputs, (position + half) % (2 * half))
        return np.where(sizes[:, None] == 1, inputs[:, :1], other)


@register
@dataclass(frozen=True)
class BucketSort(ChomskyTask, task="bucket_sort", level="cs"):
    """The digits 0 to 4 in ascending order."""

    about = "the string sorted"
    metric = "token"
    symbols = tuple("01234")
    classes = 5

    def output_sizes(self, lengths: Ints) -> Ints:
        return lengths

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return np.sort(inputs.astype(np.int8), axis=1, kind="stable")[:, :width].astype(np.int64)


@register
@dataclass(frozen=True)
class ComputeSqrt(ChomskyTask, task="compute_sqrt", level="cs"):
    """The square root, rounded down, of a positive number; both are written highest bit first."""

    about = "the square root of a binary number"
    metric = "token"

    def output_sizes(self, lengths: Ints) -> Ints:
        return (lengths + 1) // 2

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        inside = np.arange(width) < sizes[:, None]
        tokens = uniform(rng, 2, sizes, width)
        while len(bad := np.flatnonzero(~(inside & (tokens == 1)).any(1))):  # a number is positive
            tokens[bad] = uniform(rng, 2, bad, width)
        return tokens

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        position = np.arange(inputs.shape[1])
        lowest_first = gather(inputs, sizes[:, None] - 1 - position) * (position < sizes[:, None])
        roots = to_bits(map(math.isqrt, to_integers(lowest_first)), width)
        return gather(roots, self.output_sizes(sizes)[:, None] - 1 - np.arange(width))


@dataclass(frozen=True)
class _BinaryArithmetic(ChomskyTask, task="", level=""):
    """Two positive numbers, lowest bit first, with a separator at a uniform position between them.

    The outputs are the result, lowest bit first and without leading zeros, then the terminator. An
    input of fewer than 3 tokens is one number, which may be 0 and is not all ones.
    """

    metric = "token"
    symbols = ("0", "1", "SEP")
    classes = 3
    terminated = True

    separator = 2

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        position, pair = np.arange(width), sizes > 2
        split = np.where(pair, rng.integers(1, np.maximum(sizes, 3) - 1), sizes)[:, None]
        first = position < split
        second = (position > split) & (position < sizes[:, None])
        tokens = uniform(rng, 2, sizes, width)
        bad = np.arange(len(sizes))
        while len(bad):
            ones = tokens[bad] == 1
            some_first, some_second = (ones & first[bad]).any(1), (ones & second[bad]).any(1)
            all_first = (ones | ~first[bad]).all(1)
            bad = bad[np.where(pair[bad], ~(some_first & some_second), all_first)]
            tokens[bad] = uniform(rng, 2, bad, width)
        tokens[position == split] = self.separator
        return tokens

    def operands(self, inputs: Ints, sizes: Ints) -> list[tuple[int, int]]:
        """Return the two numbers of each row; the second is 0 where there is no separator."""
        is_separator = inputs == self.separator
        split = np.where(is_separator.any(1), is_separator.argmax(1), sizes).tolist()
        whole = to_integers(inputs * (inputs < self.separator))
        return [(n & ((1 << s) - 1), n >> (s + 1)) for n, s in zip(whole, split, strict=True)]

    def terminate(self, results: list[int], width: int) -> Ints:
        """Write the bits of each result, the terminator and zeros, [B, width]."""
        bits = to_bits(results, width)
        ends = [max(1, result.bit_length()) for result in results]
        bits[np.arange(len(results)), ends] = TERMINATOR
        return bits


@register
@dataclass(frozen=True)
class BinaryAddition(_BinaryArithmetic, task="binary_addition", level="cs"):
    """The sum of two binary numbers; of a single number, the number."""

    about = "the sum of two binary numbers"

    def output_sizes(self, lengths: Ints) -> Ints:
        return lengths + 1

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return self.terminate([a + b for a, b in self.operands(inputs, sizes)], width)


@register
@dataclass(frozen=True)
class BinaryMultiplication(_BinaryArithmetic, task="binary_multiplication", level="cs"):
    """The product of two binary numbers; of a single number, zeros and a last terminator."""

    about = "the product of two binary numbers"

    def output_sizes(self, lengths: Ints) -> Ints:
        return lengths

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        products = [a * b for a, b in self.operands(inputs, sizes)]
        classes = self.terminate(products, max(width, 2))
        alone = ~(inputs == self.separator).any(1)
        classes[alone] = 0
        classes[alone, sizes[alone] - 1] = TERMINATOR
        return classes


def to_integers(bits: Ints) -> list[int]:
    """Convert bits [B, T], lowest first, to integers of any size."""
    packed = np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")
    size, data = packed.shape[1], packed.tobytes()
    return [int.from_bytes(data[i * size : (i + 1) * size], "little") for i in range(len(bits))]


def to_bits(numbers: Iterable[int], width: int) -> Ints:
    """Convert integers below 2^width to bits [B, width], lowest first."""
    size = -(-width // 8)
    data = b"".join(number.to_bytes(size, "little") for number in numbers)
    packed = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    return np.unpackbits(packed, axis=1, count=width, bitorder="little").astype(np.int64)
