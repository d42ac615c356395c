"""Arithmetic expressions modulo m as tokens: drawing and evaluating them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from statetrack.errors import UserError
from statetrack.tasks.base import IGNORE, Batch, Ints

Floats = NDArray[np.float64]
ABSENT = -1  # the id of a symbol that does not occur


class Symbols(NamedTuple):
    """The token ids of an expression; the digit d is `zero` + d."""

    modulus: int
    zero: int
    plus: int
    minus: int
    times: int
    open: int = ABSENT
    close: int = ABSENT


def flat_expressions(rng: np.random.Generator, count: int, width: int, symbols: Symbols) -> Ints:
    """Draw [count, width] tokens: uniform digits at even positions, operators at odd ones."""
    tokens = np.empty((count, width), dtype=np.int64)
    digits, operators = tokens[:, ::2], tokens[:, 1::2]
    digits[:] = symbols.zero + rng.integers(0, symbols.modulus, digits.shape)
    drawn = rng.integers(0, 3, operators.shape)
    operators[:] = np.array([symbols.plus, symbols.minus, symbols.times])[drawn]
    return tokens


def running_values(tokens: Ints, symbols: Symbols) -> Ints:
    """Evaluate, at each position of tokens [B, T], the expression up to the last digit.

    * binds tighter than + and -: the value is the sum of the finished terms and the unfinished one.
    """
    digits = np.ascontiguousarray(tokens[:, ::2].T) - symbols.zero  # [T, B]: contiguous reads
    operators = np.full_like(digits, symbols.plus)
    operators[1:] = tokens[:, 1::2].T[: len(digits) - 1]
    times = operators == symbols.times
    ends = np.where(times, 0, 1)  # whether the term before it is finished
    signs = np.where(operators == symbols.minus, symbols.modulus - 1, 1)  # -1 modulo m
    values = np.empty_like(digits)
    total = term = np.zeros(len(tokens), dtype=np.int64)
    for t, digit in enumerate(digits):
        total = total + ends[t] * term
        term = np.where(times[t], term, signs[t]) * digit % symbols.modulus
        values[t] = total + term
    return np.repeat(values.T % symbols.modulus, 2, axis=1)[:, : tokens.shape[1]]


class Level(NamedTuple):
    """All subexpressions of one depth."""

    values: Ints
    binary: Ints  # indices of those with two operands
    operator: Ints  # of these: 0, 1, 2 for plus, minus, times


def bracket_expressions(
    rng: np.random.Generator, sizes: Ints, width: int, symbols: Symbols, times: bool, fill: int
) -> tuple[Ints, Ints]:
    """Draw bracketed expressions of the given sizes.

    d, -d, (d) and (-d) have 1 to 4 tokens; a longer expression is (left operator right), with the
    size of the left operand uniform. All subexpressions of one depth are drawn at once; values are
    computed from the deepest up.

    Returns:
        The tokens [B, width], filled up with `fill`, and the values [B].
    """
    tokens = np.full((len(sizes), width), fill, dtype=np.int64)
    flat = tokens.reshape(-1)
    operators = np.array([symbols.plus, symbols.minus, symbols.times][: 3 if times else 2])
    start, size = np.arange(len(sizes)) * width, np.asarray(sizes)
    levels: list[Level] = []
    while len(size):
        values = np.empty(len(size), dtype=np.int64)
        leaf, binary = np.flatnonzero(size < 5), np.flatnonzero(size >= 5)
        values[leaf] = _leaves(rng, flat, start[leaf], size[leaf], symbols)
        start, size = start[binary], size[binary]
        left = rng.integers(1, size - 3)
        operator = rng.integers(0, len(operators), len(size))
        flat[start] = symbols.open
        flat[start + 1 + left] = operators[operator]
        flat[start + size - 1] = symbols.close
        levels.append(Level(values, binary, operator))
        start = np.concatenate([start + 1, start + 2 + left])
        size = np.concatenate([left, size - 3 - left])
    operands = np.empty(0, dtype=np.int64)
    for values, binary, operator in reversed(levels):
        a, b = operands.reshape(2, -1)
        values[binary] = np.choose(operator, [a + b, a - b, a * b]) % symbols.modulus
        operands = values
    return tokens, operands


@lru_cache(maxsize=64)
def bracket_value_shares(modulus: int, longest: int) -> Floats:
    """Return how often an expression of `bracket_expressions` with multiplication has each value.

    Leaves are uniform. A longer expression takes each size of its left operand, and each operator,
    equally often, so its shares follow from those of shorter ones.

    Args:
        modulus: m.
        longest: the greatest size.

    Returns:
        [longest + 1, m], by size and value; the row of size 0 has no meaning.
    """
    a, b = np.indices((modulus, modulus))
    results = [value % modulus for value in (a + b, a - b, a * b)]
    shares = np.full((longest + 1, modulus), 1 / modulus)
    for size in range(5, longest + 1):
        left, right = shares[1 : size - 3], shares[size - 4 : 0 : -1]
        pairs = left.T @ right / len(left)  # [m, m]: the shares of both operands' values
        counts = [np.bincount(r.ravel(), pairs.ravel(), modulus) for r in results]
        shares[size] = np.mean(counts, axis=0)
    shares.flags.writeable = False  # it is cached
    return shares


def _leaves(
    rng: np.random.Generator, flat: Ints, start: Ints, size: Ints, symbols: Symbols
) -> Ints:
    """Write d, -d, (d) or (-d), by size, at each start, and return the values."""
    digits = rng.integers(0, symbols.modulus, len(size))
    bracketed, negative = size >= 3, size % 2 == 0
    flat[start + size - 1 - bracketed] = symbols.zero + digits
    flat[(start + bracketed)[negative]] = symbols.minus
    flat[start[bracketed]] = symbols.open
    flat[(start + size - 1)[bracketed]] = symbols.close
    return np.where(negative, -digits, digits) % symbols.modulus


def bracket_values(tokens: Ints, symbols: Symbols) -> Ints:
    """Compute the values [B] of fully bracketed expressions [B, T]; other ids are skipped.

    A minus negates the next digit unless an operand precedes it. For each bracket depth a stack
    machine keeps `value`, the value so far, and the pending map v -> slope * v + offset of the next
    operand.
    """
    columns = np.ascontiguousarray(tokens.T)  # [T, B]: contiguous reads
    width, count = columns.shape
    opens, closes = columns == symbols.open, columns == symbols.close
    depth = np.cumsum(np.where(opens, 1, 0) - closes, axis=0)
    if depth.min(initial=0) < 0 or depth[-1:].any():
        raise UserError("an expression has brackets that do not match")

    digits = columns - symbols.zero
    is_digit = (digits >= 0) & (digits < symbols.modulus)
    times = columns == symbols.times
    minus = columns == symbols.minus
    signs = np.where(minus, symbols.modulus - 1, 1)  # -1 modulo m
    operator = times | minus | (columns == symbols.plus)
    due = np.ones_like(opens)  # whether an operand is due, so that a minus is a sign
    due[1:] = (opens | operator)[:-1]
    unary = operator & due
    digits[1:] *= np.where(unary, signs, 1)[:-1]
    operator &= ~unary

    here = depth * count + np.arange(count)
    spare = (int(depth.max(initial=0)) + 2) * count  # a cell for steps that write nothing
    to_value = np.where(is_digit | closes, here, spare)
    to_map = np.where(operator | opens, here, spare)
    adds = np.where(operator & ~times, 1, 0)
    value, offset = np.zeros((2, spare + 1), dtype=np.int64)
    slope = np.ones(spare + 1, dtype=np.int64)
    for t in range(width):
        at = here[t]
        operand = np.where(closes[t], value[at + count], digits[t])
        value[to_value[t]] = (slope[at] * operand + offset[at]) % symbols.modulus
        reached = value[at]
        slope[to_map[t]] = np.where(times[t], reached, signs[t])
        offset[to_map[t]] = reached * adds[t]
    return value[:count]


def answered_at(tokens: Ints, position: Ints, marker: int, answers: Ints, lengths: Ints) -> Batch:
    """Write `marker` at one position per row and make `answers` the targets there."""
    targets = np.full_like(tokens, IGNORE)
    rows = np.arange(len(tokens))
    tokens[rows, position] = marker
    targets[rows, position] = answers
    return Batch(tokens, targets, lengths)
