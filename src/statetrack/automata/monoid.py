"""The transition monoid of a DFA: the mappings of its states that words make."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statetrack.automata.closure import Closure, Ints, close
from statetrack.automata.dfa import DFA
from statetrack.automata.search import TooManyStatesError
from statetrack.errors import UserError

MAX_MONOID_ELEMENTS = 100_000
MAX_MONOID_CELLS = 100_000_000  # elements times states: a few hundred megabytes


@dataclass(frozen=True, eq=False)
class MaximalSubgroup:
    """A largest group in a monoid: the elements with the image and the kernel of its identity."""

    idempotent: int  # its identity e, by number in the monoid
    elements: NDArray[np.int64]  # [order]: their numbers in the monoid, ascending
    permutations: NDArray[np.int64]  # [order, points], of the states in the image of e

    @property
    def order(self) -> int:
        """The number of elements."""
        return len(self.elements)


class TransitionMonoid:
    """All mappings of the states of a DFA that words make.

    Elements are numbered by their shortest words; 0 is the identity, of the empty word. The
    transition monoid of a minimal DFA is the syntactic monoid of its language.

    Raises:
        UserError: There are more than `max_size` elements.
    """

    def __init__(self, dfa: DFA, max_size: int = MAX_MONOID_ELEMENTS) -> None:
        self.dfa = dfa
        limit = min(max_size, MAX_MONOID_CELLS // dfa.states)
        try:
            self._closure: Closure = close(dfa.delta.T, limit)
        except TooManyStatesError:
            raise UserError(
                f"the transition monoid of a DFA with {dfa.states:,} states and "
                f"{len(dfa.alphabet)} symbols has more than {limit:,} elements, "
                "which is the most supported"
            ) from None

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def elements(self) -> Ints:
        """[m, states]: the image of each state under each element."""
        return self._closure.elements

    @property
    def steps(self) -> NDArray[np.int64]:
        """[m, symbols]: the element of a word of each element with one more symbol at its end."""
        return np.asarray(self._closure.steps)

    def index(self, mapping: ArrayLike) -> int:
        """Return the number of a mapping of the states, given as the image of each state."""
        row = np.asarray(mapping)
        key = row.astype(self.elements.dtype).tobytes()
        if row.shape != self.elements.shape[1:] or key not in self._closure.numbers:
            raise UserError(f"the mapping {row.tolist()} is not in the transition monoid")
        return self._closure.numbers[key]

    def word(self, element: int) -> tuple[str, ...]:
        """Return the shortest word of an element; of several, the first in alphabetical order."""
        return tuple(self.dfa.alphabet[letter] for letter in self._closure.word(element))

    @cached_property
    def idempotents(self) -> NDArray[np.int64]:
        """The elements e with ee = e."""
        squares = np.take_along_axis(self.elements, self.elements, axis=1)
        return np.flatnonzero((squares == self.elements).all(axis=1))

    @cached_property
    def maximal_subgroups(self) -> list[MaximalSubgroup]:
        """The maximal subgroup of each idempotent e, in the order of `idempotents`.

        Its elements are those with the image and the kernel of e. In the monoid of all mappings
        these are the H-class of e, which is a group. Those in this monoid are a finite subset
        closed under products, so a group too, and it contains every group with identity e.
        """
        m, states = self.elements.shape
        image = np.zeros((m, states), dtype=np.bool_)
        np.put_along_axis(image, self.elements, True, axis=1)
        first = np.zeros_like(self.elements)  # [m, q]: the least state with image q
        for q in reversed(range(states)):
            first[np.arange(m), self.elements[:, q]] = q
        kernel = np.take_along_axis(first, self.elements, axis=1)
        classes: dict[tuple[bytes, bytes], list[int]] = {}
        keys = [(i.tobytes(), k.tobytes()) for i, k in zip(image, kernel, strict=True)]
        for element, key in enumerate(keys):
            classes.setdefault(key, []).append(element)
        subgroups = []
        for e in self.idempotents.tolist():
            elements = np.array(classes[keys[e]])
            points = np.flatnonzero(image[e])
            moved = self.elements[np.ix_(elements, points)]
            subgroups.append(MaximalSubgroup(e, elements, np.searchsorted(points, moved)))
        return subgroups
