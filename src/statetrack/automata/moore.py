"""Moore machines from rules: what a state is, where a symbol leads, and what is answered there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from statetrack.automata.dfa import DFA
from statetrack.automata.search import MAX_UNMINIMISED_STATES, TooManyStatesError, reach

S = TypeVar("S", bound=Hashable)


def moore_machine(
    alphabet: Sequence[str],
    start: S,
    step: Callable[[S, int], S],
    output: Callable[[S], str | None],
    accept: str,
) -> DFA | None:
    """The minimal DFA with outputs of the states that can be reached; None if they are too many.

    `step` takes a state and the number of a symbol. The words whose output is `accept` are
    accepted.
    """
    symbols = range(len(alphabet))
    try:
        found = reach(
            start, lambda state: [step(state, a) for a in symbols], MAX_UNMINIMISED_STATES
        )
    except TooManyStatesError:
        return None
    outputs = tuple(map(output, found.states))
    accepting = np.array([text == accept for text in outputs])
    return DFA(tuple(alphabet), np.array(found.next), 0, accepting, outputs).minimal()
