"""Arithmetic modulo m as strings of tokens: drawing expressions and working out their values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from statetrack.errors import UserError
from statetrack.tasks.base import IGNORE, Batch, Ints

ABSENT = -1  # the id of a symbol that a language does not have


class Symbols(NamedTuple):
    """The ids that an expression is written in; the digit d is `zero` + d."""

    modulus: int
    zero: int
    plus: int
    minus: int
    times: int
    open: int = ABSENT
    close: int = ABSENT


def flat_expressions(rng: np.random.Generator, count: int, width: int, symbols: Symbols) -> Ints:
    """[count, width] digits at even places, operators at odd ones, all of them uniform."""
    tokens = np.empty((count, width), dtype=np.int64)
    digits, operators = tokens[:, ::2], tokens[:, 1::2]
    digits[:] = symbols.zero + rng.integers(0, symbols.modulus, digits.shape)
    drawn = rng.integers(0, 3, operators.shape)
    operators[:] = np.array([symbols.plus, symbols.minus, symbols.times])[drawn]
    return tokens


def running_values(tokens: Ints, symbols: Symbols) -> Ints:
    """[B, T] -> the value, at each place, of the digits and operators up to its last digit.

    Multiplication binds tighter: the value is a sum of finished terms plus the term at hand.
    """
    digits = np.ascontiguousarray(tokens[:, ::2].T) - symbols.zero  # a row per step
    operators = np.full_like(digits, symbols.plus)
    operators[1:] = tokens[:, 1::2].T[: len(digits) - 1]
    times = operators == symbols.times
    ends = np.where(times, 0, 1)  # whether the term before is finished
    signs = np.where(operators == symbols.minus, symbols.modulus - 1, 1)  # -1 modulo m
    values = np.empty_like(digits)
    total = term = np.zeros(len(tokens), dtype=np.int64)
    for t, digit in enumerate(digits):
        total = total + ends[t] * term
        term = np.where(times[t], term, signs[t]) * digit % symbols.modulus
        values[t] = total + term
    return np.repeat(values.T % symbols.modulus, 2, axis=1)[:, : tokens.shape[1]]


class Level(NamedTuple):
    """All subexpressions of one depth: their values, which of them are binary, and the operator."""

    values: Ints
    binary: Ints
    operator: Ints  # 0, 1, 2 for plus, minus, times


def bracket_expressions(
    rng: np.random.Generator, sizes: Ints, width: int, symbols: Symbols, times: bool, fill: int
) -> tuple[Ints, Ints]:
    """Expressions of the given sizes, [B, width] with `fill` after them, and their values [B].

    d, -d, (d) and (-d) have 1 to 4 tokens; a longer one is (left operator right), the size of the
    left operand uniform on what there is room for. Drawn breadth first: one level of all
    expressions at a time, then valued from the leaves up.
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


def _leaves(
    rng: np.random.Generator, flat: Ints, start: Ints, size: Ints, symbols: Symbols
) -> Ints:
    """Write d, -d, (d) or (-d), by size, from each start; returns the values."""
    digits = rng.integers(0, symbols.modulus, len(size))
    bracketed, negative = size >= 3, size % 2 == 0
    flat[start + size - 1 - bracketed] = symbols.zero + digits
    flat[(start + bracketed)[negative]] = symbols.minus
    flat[start[bracketed]] = symbols.open
    flat[(start + size - 1)[bracketed]] = symbols.close
    return np.where(negative, -digits, digits) % symbols.modulus


def bracket_values(tokens: Ints, symbols: Symbols) -> Ints:
    """[B, T] -> [B]: the values of expressions in which brackets settle every precedence.

    A minus before a digit negates it unless an operand stands before. Other ids are passed over.
    A stack machine: what is pending at a depth is the map v -> slope * v + offset of the operand
    to come, and `value` is what that depth has come to.
    """
    columns = np.ascontiguousarray(tokens.T)  # a row per step
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
    spare = (int(depth.max(initial=0)) + 2) * count  # where steps write that have nothing to say
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
    """The batch that asks for `answers` at one `position` per row, where `marker` is put."""
    targets = np.full_like(tokens, IGNORE)
    rows = np.arange(len(tokens))
    tokens[rows, position] = marker
    targets[rows, position] = answers
    return Batch(tokens, targets, lengths)
