"""Moore machines from rules: what a state is, where a symbol leads, and what is answered there."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from statetrack.automata.dfa import DFA

MAX_STATES = 10_000  # of a machine before it is minimised: a second's work
S = TypeVar("S", bound=Hashable)


def enumerate_states(
    start: S, successors: Callable[[S], Iterable[S]], limit: float = math.inf
) -> tuple[list[S], list[list[int]]]:
    """Return all states reachable from `start` and, by state, the numbers of its successors.

    States are found breadth first. The search stops once there are more than `limit`.
    """
    numbers = {start: 0}
    order, rows = [start], []
    for state in order:  # grows while it is read
        row = []
        for target in successors(state):
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
            row.append(numbers[target])
        rows.append(row)
        if len(order) > limit:
            break
    return order, rows


def moore_machine(
    alphabet: Sequence[str],
    start: S,
    step: Callable[[S, int], S],
    output: Callable[[S], str | None],
    accept: str,
) -> DFA | None:
    """The minimal DFA with outputs of the states that can be reached; None beyond MAX_STATES.

    `step` takes a state and the number of a symbol. The words whose output is `accept` are
    accepted.
    """
    symbols = range(len(alphabet))
    order, rows = enumerate_states(
        start, lambda state: (step(state, symbol) for symbol in symbols), MAX_STATES
    )
    if len(order) > MAX_STATES:
        return None
    outputs = tuple(map(output, order))
    accepting = np.array([text == accept for text in outputs])
    return DFA(tuple(alphabet), np.array(rows), 0, accepting, outputs).minimal()
