"""Compare the automaton read off a model with that of its task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from statetrack.automata import DFA
from statetrack.automata.search import reach


def agree(read: DFA, task: DFA) -> bool:
    """Whether two automata give the same answers wherever the task's has one.

    If the task's automaton has no outputs, accepted and rejected words must have no answer in
    common.

    Args:
        read: the automaton read off a model.
        task: the task's automaton.
    """
    if set(read.alphabet) != set(task.alphabet) or read.outputs is None:
        return False
    pairs = _reached_pairs(read, task)
    if task.outputs is not None:
        both = [(read.outputs[a], task.outputs[b]) for a, b in pairs]
        return all(answer == wanted for answer, wanted in both if wanted is not None)
    yes, no = ({read.outputs[a] for a, b in pairs if task.accepting[b] == side} for side in (1, 0))
    return not yes & no


def accepting_as(read: DFA, task: DFA) -> DFA:
    """Return `read` with the accepting states of `task`, with which it agrees.

    A state that corresponds to both accepting and rejecting states of the task does not accept.
    """
    pairs = _reached_pairs(read, task) | {(read.start, task.start)}
    yes, no = ({a for a, b in pairs if task.accepting[b] == side} for side in (1, 0))
    accepting = np.isin(np.arange(read.states), sorted(yes - no))
    return replace(read, accepting=accepting)


def _reached_pairs(read: DFA, task: DFA) -> set[tuple[int, int]]:
    """Return the pairs of states that words of at least one symbol lead to."""
    columns = [read.alphabet.index(symbol) for symbol in task.alphabet]

    def successors(pair: tuple[int, int]) -> Iterable[tuple[int, int]]:
        a, b = pair
        return zip(read.delta[a, columns].tolist(), task.delta[b].tolist(), strict=True)

    pairs = reach((read.start, task.start), successors)
    return {pairs.states[i] for row in pairs.next for i in row}
