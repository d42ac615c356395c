"""Formal languages worked out a second time: plain Python on one row, no numpy, no statetrack."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

Row = list[int]


def value(symbols: str, row: Row, modulus: int = 5) -> int:
    """The value of a row of one-character symbols, by Python's own arithmetic."""
    return eval("".join(symbols[token] for token in row)) % modulus


def solution(row: Row) -> int:
    """The one x in 0..4 that solves the equation."""
    if len(row) < 3:
        return 0
    left, right = "".join("01234+-()x="[token] for token in row).split("=")
    (x,) = (x for x in range(5) if eval(left, {"x": x}) % 5 == int(right))
    return x


def stack(row: Row) -> Row:
    """The stack, top first, and what follows it."""
    left: Row = []
    for token in row:
        if token != 2:
            left.append({0: 0, 1: 1, 3: 0, 4: 1}[token])
        elif left:
            left.pop()
    return [*reversed(left), 2, *[0] * (len(row) - len(left))]


def number(bits: Row) -> int:
    """A number written lowest bit first."""
    return int("".join(map(str, reversed(bits))), 2)


def binary(row: Row, combine: Callable[[int, int], int], size: int) -> Row:
    """Two numbers with a 2 between them -> the result, a 2, and zeros."""
    split = row.index(2)
    result = combine(number(row[:split]), number(row[split + 1 :]))
    bits = [int(bit) for bit in reversed(format(result, "b"))]
    return ([*bits, 2] + [0] * size)[:size]


def addition(row: Row) -> Row:
    if len(row) < 3:
        row = [*row, 2, 0]
        return binary(row, int.__add__, len(row) - 1)
    return binary(row, int.__add__, len(row) + 1)


def multiplication(row: Row) -> Row:
    if len(row) < 3:
        return [0] * (len(row) - 1) + [2]
    return binary(row, int.__mul__, len(row))


def root(row: Row) -> Row:
    width = math.ceil(len(row) / 2)
    return [int(bit) for bit in format(math.isqrt(int("".join(map(str, row)), 2)), f"0{width}b")]


def missing(row: Row) -> int:
    if len(row) == 1:
        return row[0]
    row = row[: len(row) - len(row) % 2]
    first, second = row[: len(row) // 2], row[len(row) // 2 :]
    (pair,) = ((a, b) for a, b in zip(first, second, strict=True) if 2 in (a, b))
    return min(pair)


def pairs(row: Row) -> int:
    """How many neighbours differ, modulo 2."""
    return sum(a != b for a, b in pairwise(row)) % 2


CHOMSKY: dict[str, Callable[[Row], Row]] = {
    "even_pairs": lambda row: [pairs(row)],
    "parity_check": lambda row: [row.count(1) % 2],
    "cycle_navigation": lambda row: [sum(token - 1 for token in row) % 5],
    "modular_arithmetic": lambda row: [value("01234+-*", row)],
    "stack_manipulation": stack,
    "reverse_string": lambda row: row[::-1],
    "modular_arithmetic_brackets": lambda row: [value("01234+-*()", row)],
    "modular_arithmetic_brackets_nomult": lambda row: [value("01234+-*()", row)],
    "solve_equation": lambda row: [solution(row)],
    "odds_first": lambda row: row[1::2] + row[::2],
    "duplicate_string": lambda row: row + row,
    "missing_duplicate_string": lambda row: [missing(row)],
    "binary_addition": addition,
    "binary_multiplication": multiplication,
    "compute_sqrt": root,
    "bucket_sort": sorted,
}
