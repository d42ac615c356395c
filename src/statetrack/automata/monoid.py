"""The transition monoid of a DFA: what all words do to its states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statetrack.automata.closure import Closure, Ints, TooManyError, close
from statetrack.automata.dfa import DFA
from statetrack.errors import UserError

MAX_MONOID_ELEMENTS = 100_000
MAX_MONOID_CELLS = 100_000_000  # elements times states: a few hundred megabytes


@dataclass(frozen=True, eq=False)
class MaximalSubgroup:
    """A group in a monoid, as large as can be: the elements that act as e does, but for order."""

    idempotent: int  # its identity e
    elements: NDArray[np.int64]  # [order]: their numbers in the monoid, ascending
    permutations: NDArray[np.int64]  # [order, points]: of e's image, numbered in order

    @property
    def order(self) -> int:
        """The number of elements."""
        return len(self.elements)


class TransitionMonoid:
    """All mappings of the states of a DFA by words, shortest words first; 0 is the empty word.

    That of a minimal DFA is the syntactic monoid of its language.
    """

    def __init__(self, dfa: DFA, max_size: int = MAX_MONOID_ELEMENTS) -> None:
        self.dfa = dfa
        limit = min(max_size, MAX_MONOID_CELLS // dfa.states)
        try:
            self._closure: Closure = close(dfa.delta.T, limit)
        except TooManyError:
            raise UserError(
                f"the transition monoid of a DFA with {dfa.states:,} states and "
                f"{len(dfa.alphabet)} symbols has more than {limit:,} elements, "
                "which is the most supported"
            ) from None

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def elements(self) -> Ints:
        """[m, states]: the state that each element takes each state to."""
        return self._closure.elements

    @property
    def generators(self) -> NDArray[np.int64]:
        """[symbols]: the elements of the words of one symbol."""
        return np.asarray(self._closure.steps[0])

    @property
    def steps(self) -> NDArray[np.int64]:
        """[m, symbols]: the element of a word with one more symbol at its end."""
        return np.asarray(self._closure.steps)

    def index(self, mapping: ArrayLike) -> int:
        """The number of a mapping of the states."""
        row = np.asarray(mapping)
        key = row.astype(self.elements.dtype).tobytes()
        if row.shape != self.elements.shape[1:] or key not in self._closure.numbers:
            raise UserError(f"the mapping {row.tolist()} is not in the transition monoid")
        return self._closure.numbers[key]

    def compose(self, first: int, second: int) -> int:
        """The element of a word of `first` followed by a word of `second`."""
        return self._closure.numbers[self.elements[second][self.elements[first]].tobytes()]

    def word(self, element: int) -> tuple[str, ...]:
        """The shortest word of an element, the first in alphabetical order if there are more."""
        return tuple(self.dfa.alphabet[letter] for letter in self._closure.word(element))

    @cached_property
    def words(self) -> list[tuple[str, ...]]:
        """The shortest word of each element."""
        words: list[tuple[str, ...]] = [()]
        parents, letters = self._closure.parents.tolist(), self._closure.letters.tolist()
        for parent, letter in zip(parents[1:], letters[1:], strict=True):
            words.append((*words[parent], self.dfa.alphabet[letter]))
        return words

    @cached_property
    def idempotents(self) -> NDArray[np.int64]:
        """The elements e with ee = e."""
        squares = np.take_along_axis(self.elements, self.elements, axis=1)
        return np.flatnonzero((squares == self.elements).all(axis=1))

    @cached_property
    def maximal_subgroups(self) -> list[MaximalSubgroup]:
        """One for each idempotent, in order: the elements with its image and its kernel.

        In all mappings of the states these form the H-class of e, a group. The part of it in this
        monoid is finite and closed, so a group; and any group with the identity e is in it.
        """
        m, states = self.elements.shape
        image = np.zeros((m, states), dtype=np.bool_)
        np.put_along_axis(image, self.elements, True, axis=1)
        first = np.zeros_like(self.elements)  # [m, q]: the least state that is taken to q
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
