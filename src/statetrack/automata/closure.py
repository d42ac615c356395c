"""Breadth-first searches: the states that can be reached, and all products of some mappings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
S = TypeVar("S", bound=Hashable)


class TooManyError(Exception):
    """A search found more states than its limit."""


def reachable(
    start: S, successors: Callable[[S], Iterable[S]], limit: int | None = None
) -> tuple[list[S], list[list[int]]]:
    """Search breadth first for all states that can be reached.

    Args:
        start: State number 0.
        successors: The states after one step from a state, one for each symbol.
        limit: The most states that may be found.

    Returns:
        The states in the order in which they are found, and a row for each of them: the numbers
        of its successors.

    Raises:
        TooManyError: More than `limit` states can be reached.
    """
    numbers = {start: 0}
    order, table = [start], []
    for state in order:  # grows during the loop
        row = []
        for target in successors(state):
            number = numbers.setdefault(target, len(order))
            if number == len(order):
                if number == limit:
                    raise TooManyError
                order.append(target)
            row.append(number)
        table.append(row)
    return order, table


@dataclass(frozen=True, eq=False)
class Closure:
    """The m products of k mappings (generators) of n points, shortest products first."""

    elements: Ints  # [m, n]: the image of each point; element 0 is the identity
    steps: Ints  # [m, k]: the product of an element and one more generator, which acts last
    parents: Ints  # [m]: element i > 0 was found as parents[i] and then generator letters[i]
    letters: Ints  # [m]

    @cached_property
    def numbers(self) -> dict[bytes, int]:
        """The number of each element, by its bytes."""
        return {row.tobytes(): i for i, row in enumerate(self.elements)}

    def word(self, element: int) -> list[int]:
        """Return a shortest product that gives the element: generators in the order they act."""
        word = []
        while element:
            word.append(int(self.letters[element]))
            element = int(self.parents[element])
        return word[::-1]


def close(generators: Ints, limit: int) -> Closure:
    """Find the identity and all products of `generators` [k, points].

    Raises:
        TooManyError: There are more than `limit` elements.
    """
    k, points = generators.shape
    # short integers: elements are compared by their bytes, and there may be many
    dtype = np.dtype(np.int16 if points < 2**15 else np.int32)
    generators = generators.astype(dtype)

    def products(element: bytes) -> list[bytes]:
        rows, size = generators[:, np.frombuffer(element, dtype)].tobytes(), len(element)
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    order, table = reachable(np.arange(points, dtype=dtype).tobytes(), products, limit)
    steps = np.array(table)
    first = np.zeros(len(order), dtype=np.int64)  # where in `steps` each element occurs first
    found, first_places = np.unique(steps, return_index=True)
    first[found] = first_places
    elements = np.frombuffer(b"".join(order), dtype).reshape(-1, points)
    return Closure(elements, steps, *np.divmod(first, k))
