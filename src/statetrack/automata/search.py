"""Breadth-first search: all states that can be reached from a start, and shortest words to them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)

MAX_UNMINIMISED_STATES = 10_000  # of an automaton before it is minimised: about a second


class TooManyStatesError(Exception):
    """More states can be reached than the limit allows."""


@dataclass(frozen=True)
class Reached(Generic[S]):
    """The states that can be reached, numbered in the order in which they were found."""

    states: list[S]  # the start is number 0
    next: list[list[int]]  # the numbers of each state's successors, in the order given
    parents: list[tuple[int, int]]  # predecessor, and index among its successors

    def word(self, number: int) -> list[int]:
        """Return a shortest word from the start to a state: the index of the successor per step."""
        word = []
        while number:
            number, place = self.parents[number]
            word.append(place)
        return word[::-1]


def reach(start: S, successors: Callable[[S], Iterable[S]], limit: int | None = None) -> Reached[S]:
    """Search breadth first for all states that can be reached.

    Args:
        start: State number 0.
        successors: The states after one step from a state, one for each symbol.
        limit: The most states that may be found.

    Raises:
        TooManyStatesError: More than `limit` states can be reached.
    """
    numbers = {start: 0}
    states, parents = [start], [(0, 0)]
    table = []
    for number, state in enumerate(states):  # grows during the loop
        row = []
        for place, target in enumerate(successors(state)):
            if target not in numbers:
                if len(states) == limit:
                    raise TooManyStatesError
                numbers[target] = len(states)
                states.append(target)
                parents.append((number, place))
            row.append(numbers[target])
        table.append(row)
    return Reached(states, table, parents)
