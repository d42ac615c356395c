"""All products of some mappings of finitely many points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.search import reach

Ints = NDArray[np.integer]


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
        TooManyStatesError: There are more than `limit` elements.
    """
    points = generators.shape[1]
    # short integers: elements are compared by their bytes, and there may be many
    dtype = np.dtype(np.int16 if points < 2**15 else np.int32)
    generators = generators.astype(dtype)

    def products(element: bytes) -> list[bytes]:
        rows, size = generators[:, np.frombuffer(element, dtype)].tobytes(), len(element)
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    found = reach(np.arange(points, dtype=dtype).tobytes(), products, limit)
    elements = np.frombuffer(b"".join(found.states), dtype).reshape(-1, points)
    return Closure(elements, np.array(found.next), *np.array(found.parents).T)
