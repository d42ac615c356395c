"""Moore machines from rules: what a state is, where a symbol leads, and what is answered there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from statetrack.automata.dfa import DFA

MAX_STATES = 10_000  # of a machine before it is minimised: a second's work
S = TypeVar("S", bound=Hashable)


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
    numbers: dict[S, int] = {start: 0}
    order = [start]
    rows = []
    for state in order:  # grows while it is read
        if len(order) > MAX_STATES:
            return None
        row = []
        for symbol in range(len(alphabet)):
            target = step(state, symbol)
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
            row.append(numbers[target])
        rows.append(row)
    outputs = tuple(map(output, order))
    accepting = np.array([text == accept for text in outputs])
    return DFA(tuple(alphabet), np.array(rows), 0, accepting, outputs).minimal()
