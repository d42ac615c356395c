"""What the tasks ask, worked out a second time: plain Python, token by token, no statetrack."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

IGNORE = -1

Row = list[int]


def parity_targets(row: Row) -> Row:
    """The dense targets of a row of bits, written as tokens 1 and 2."""
    return [1 + sum(token - 1 for token in row[: t + 1]) % 2 for t in range(len(row))]


def is_even(permutation: tuple[int, ...]) -> bool:
    """A permutation is even if points minus cycles is."""
    seen: set[int] = set()
    cycles = 0
    for start in permutation:
        cycles += start not in seen
        while start not in seen:
            seen.add(start)
            start = permutation[start]
    return (len(permutation) - cycles) % 2 == 0


def elements(group: str) -> list[tuple[Any, ...]]:
    """The elements of a product of groups: a tuple of a permutation or a residue per factor."""
    factors: list[list[Any]] = []
    for factor in group.split("_x_"):
        family, n = factor[0], int(factor[1:])
        if family == "Z":
            factors.append(list(range(n)))
        else:
            everything = sorted(permutations(range(n)))
            factors.append([p for p in everything if family == "S" or is_even(p)])
    return list(product(*factors))


def multiply(group: str, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """The product a * b; permutations apply b first."""
    out = []
    for factor, x, y in zip(group.split("_x_"), a, b, strict=True):
        if factor[0] == "Z":
            out.append((x + y) % int(factor[1:]))
        else:
            out.append(tuple(x[y[i]] for i in range(len(x))))
    return tuple(out)


def word_problem_targets(group: str, row: Row, bos: int, n: int = 1, filler: str = "") -> Row:
    """The dense targets of a row that starts with BOS, with `n` tokens per element."""
    table = elements(group)
    state = table[0]
    states = []
    for t, token in enumerate(row[1:]):
        acts = filler != "repeat" or t % n == 0
        if acts and token < len(table):
            state = multiply(group, state, table[token])
        fills = filler == "special_both" and t % n > 0
        states.append(len(table) if fills else table.index(state))
    delayed = [0] * (n - 1) + states
    return [bos, *delayed][: len(row)]


def supervised(row: Row, supervision: str, width: int) -> Row:
    """Dense targets as `supervision` asks for them, with IGNORE up to `width`."""
    if supervision == "last" and row:
        row = [IGNORE] * (len(row) - 1) + row[-1:]
    return row + [IGNORE] * (width - len(row))
