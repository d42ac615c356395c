"""Finite groups by name, as multiplication tables.

The names are `S5`, `A5`, `Z60`, `D12`, `Q8` and products such as `A4_x_Z5`. Elements are numbered
as in the word-problem literature: permutations of 1..n in lexicographic order (A_n has the even
ones), residues in order, pairs with the last factor running fastest. D_n has the n rotations of
the n-gon, then the n reflections; Q8 has 1, -1, i, -i, j, -j, k, -k. The identity is always 0.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, reduce

import numpy as np
from numpy.typing import NDArray

from statetrack.errors import UserError, check_type

MAX_GROUP_ORDER = 2520  # A7; a table has order^2 entries


@dataclass(frozen=True, eq=False)
class Group:
    """A finite group: its multiplication table and, if it is given by them, permutations."""

    name: str
    table: NDArray[np.int32]  # [n, n]: table[a, b] = a * b, where (a * b)(i) = a(b(i))
    permutations: NDArray[np.integer] | None  # [n, points]: the image of each point

    @property
    def order(self) -> int:
        """The number of elements."""
        return len(self.table)

    def moved_points(self) -> NDArray[np.int64]:
        """Return the number of points that each element moves, [n]."""
        if self.permutations is None:
            raise UserError(f"{self.name} is not given by permutations of points")
        return (self.permutations != np.arange(self.permutations.shape[1])).sum(1)

    def reflection_lengths(self) -> NDArray[np.int64]:
        """Return the least number of swaps of two points that make up each element, [n]."""
        if self.permutations is None:
            raise UserError(f"{self.name} is not given by permutations of points")
        points = np.arange(self.permutations.shape[1])
        least = np.broadcast_to(points, self.permutations.shape)  # of the cycle, as far as followed
        images = self.permutations.astype(np.int64)
        power = images
        for _ in points:
            least = np.minimum(least, power)
            power = np.take_along_axis(images, power, axis=1)
        return np.asarray((least != points).sum(1))

    def inverses(self) -> NDArray[np.int64]:
        """Return the inverse of each element, [n]."""
        return (self.table == 0).argmax(axis=1)

    def element_orders(self) -> NDArray[np.int64]:
        """Return the order of each element, [n]."""
        elements = np.arange(self.order)
        orders, powers = np.ones(self.order, dtype=np.int64), elements.copy()
        while (unfinished := powers != 0).any():
            orders += unfinished
            powers = np.where(unfinished, self.table[powers, elements], 0)
        return orders

    def subgroup(self, generators: Iterable[int]) -> NDArray[np.bool_]:
        """Return which elements are products of the given ones, [n]."""
        generators = np.fromiter(generators, dtype=np.int64)[:, None]
        members = np.zeros(self.order, dtype=np.bool_)
        members[0] = True
        frontier = np.zeros(1, dtype=np.int64)
        while len(frontier):
            before = members.copy()
            members[self.table[generators, frontier]] = True
            if 2 * np.count_nonzero(members) > self.order:  # no proper subgroup is so large
                return np.ones_like(members)
            frontier = np.flatnonzero(members & ~before)
        return members

    def generators(self) -> tuple[int, ...]:
        """Return a minimal generating set of at most log2(order) elements."""
        chosen: list[int] = []
        members = self.subgroup(chosen)
        for element in np.argsort(-self.element_orders(), kind="stable").tolist():
            if not members[element]:
                chosen.append(element)
                members = self.subgroup(chosen)
        for element in chosen[:]:
            rest = [other for other in chosen if other != element]
            if self.subgroup(rest).all():
                chosen = rest
        return tuple(chosen)


def group(name: str) -> Group:
    """Return the group called `name`.

    >>> group("A5").order
    60
    """
    check_type("the name of a group", name, str, "a text")
    return _group(name)


@cache
def _group(name: str) -> Group:
    factors = [_factor(part, name) for part in name.split("_x_")]
    order = math.prod(order for order, _ in factors)
    if order > MAX_GROUP_ORDER:
        raise UserError(
            f"group {name} has {order:,} elements; at most {MAX_GROUP_ORDER:,} are supported"
        )
    groups = [make() for _, make in factors]
    if len(groups) == 1:
        return groups[0]
    return Group(name, reduce(_product_table, (g.table for g in groups)), None)


def _factor(part: str, name: str) -> tuple[int, Callable[[], Group]]:
    """Return the order of one factor of a product, and a function that makes it."""
    if part == "Q8":
        return 8, _quaternions
    match = re.fullmatch(r"([SAZD])([1-9][0-9]{0,5})", part)
    if not match:
        raise UserError(
            f"unknown group {name!r}; known: S<n>, A<n>, Z<m>, D<n>, Q8 and products such as "
            "A4_x_Z5"
        )
    family, n = match[1], int(match[2])
    if family == "D":
        if n < 3:
            raise UserError(f"group {name}: a polygon has at least 3 corners; got {n}")
        return 2 * n, lambda: _dihedral(part, n)
    if family == "Z":
        if n < 2:
            raise UserError(f"group {name}: the modulus must be at least 2; got {n}")
        return n, lambda: _cyclic(part, n)
    if n < (2 if family == "S" else 3):
        raise UserError(f"group {name}: {part} is trivial; the least are S2 and A3")
    if n > 12:  # far beyond the limit, and large factorials are slow
        raise UserError(
            f"group {name} has at least 13!/2 elements; at most {MAX_GROUP_ORDER:,} are supported"
        )
    order = math.factorial(n) // (2 if family == "A" else 1)
    return order, lambda: _permutations(part, n, even=family == "A")


def _cyclic(name: str, n: int) -> Group:
    i = np.arange(n, dtype=np.int32)
    return Group(name, (i[:, None] + i[None, :]) % n, None)


def _dihedral(name: str, n: int) -> Group:
    k, i = np.arange(n)[:, None], np.arange(n)[None, :]
    rotations, reflections = (i + k) % n, (k - i) % n  # as permutations of the corners
    table = np.block(
        [[rotations, n + (k + i) % n], [n + (k - i) % n, (k - i) % n]]  # r_k r_i, r_k s_i, ...
    )
    permutations = np.concatenate([rotations, reflections]).astype(np.int16)
    return Group(name, table.astype(np.int32), permutations)


def _quaternions() -> Group:
    unit, minus = np.divmod(np.arange(8), 2)  # units 1, i, j, k: a product's unit is the xor
    flips = np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 1, 1]])  # ij = k, ik = -j
    units = unit[:, None] ^ unit[None, :]
    signs = minus[:, None] ^ minus[None, :] ^ flips[unit[:, None], unit[None, :]]
    return Group("Q8", (2 * units + signs).astype(np.int32), None)


def _permutations(name: str, n: int, *, even: bool) -> Group:
    perms = np.array(list(itertools.permutations(range(n))), dtype=np.int8)
    if even:
        i, j = np.triu_indices(n, 1)
        inversions = (perms[:, i] > perms[:, j]).sum(1)
        perms = perms[inversions % 2 == 0]
    place_values = n ** np.arange(n - 1, -1, -1)  # lexicographic order = order of these numbers
    codes = perms @ place_values
    composed = perms[:, perms]  # [a, b, i] = a(b(i))
    table = np.searchsorted(codes, composed @ place_values).astype(np.int32)
    return Group(name, table, perms)


def _product_table(a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.int32]:
    n, m = len(a), len(b)
    table = a[:, None, :, None] * m + b[None, :, None, :]
    return table.reshape(n * m, n * m).astype(np.int32)
