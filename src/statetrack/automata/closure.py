"""All products of a few mappings of points: what transition monoids and groups are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]


class TooManyError(Exception):
    """There are more products than the limit."""


@dataclass(frozen=True, eq=False)
class Closure:
    """The products of k mappings of n points, breadth first: shortest products come first."""

    elements: Ints  # [m, n]: where each element takes each point; element 0 is the identity
    steps: Ints  # [m, k]: the element followed by a generator
    parents: Ints  # [m]: element i was first found as parents[i] followed by letters[i]
    letters: Ints  # [m]: its last generator; -1 for the identity

    @cached_property
    def numbers(self) -> dict[bytes, int]:
        """The number of each element, by its bytes."""
        return {row.tobytes(): i for i, row in enumerate(self.elements)}

    def word(self, element: int) -> list[int]:
        """A shortest product that gives the element, as generators in the order they act."""
        word = []
        while element:
            word.append(int(self.letters[element]))
            element = int(self.parents[element])
        return word[::-1]


def close(generators: Ints, limit: int) -> Closure:
    """The identity and all products of `generators` [k, points]; more than `limit` is an error."""
    k, points = generators.shape
    # short numbers: elements are compared by their bytes, and there may be many
    generators = generators.astype(np.int16 if points < 2**15 else np.int32)
    identity = np.arange(points, dtype=generators.dtype)
    numbers = {identity.tobytes(): 0}
    elements, parents, letters, steps = [identity], [0], [-1], []
    frontier = [0]
    while frontier:
        layer = np.stack([elements[i] for i in frontier])
        found = []
        for i, followed in zip(frontier, generators[:, layer].swapaxes(0, 1), strict=True):
            row = []
            for letter in range(k):
                key = followed[letter].tobytes()
                number = numbers.setdefault(key, len(elements))
                if number == len(elements):
                    if number == limit:
                        raise TooManyError
                    elements.append(np.frombuffer(key, dtype=generators.dtype))
                    parents.append(i)
                    letters.append(letter)
                    found.append(number)
                row.append(number)
            steps.append(row)
        frontier = found
    return Closure(
        np.stack(elements),
        np.array(steps, dtype=np.int64).reshape(len(elements), k),
        np.array(parents),
        np.array(letters),
    )
