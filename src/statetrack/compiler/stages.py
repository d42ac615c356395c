"""Levels as linear maps: every state a vector, every context a matrix of zeros and ones.

A stage is what one layer computes, whatever op it runs on. Its matrices take each axis to another
one or to nothing, and a context may write a 1 to one axis: of norm at most 1, and exact in any
floating-point format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statetrack.automata import (
    DFA,
    Group,
    group_from_generators,
    is_permutation,
    minimal_permutation_representation,
)
from statetrack.compiler.cascade import Level
from statetrack.compiler.induction import Ints
from statetrack.compiler.languages import word_problem
from statetrack.errors import UserError

MAX_CELLS = 100_000_000  # numbers in a table of a layer


@dataclass(frozen=True, eq=False)
class Stage:
    """h -> A(context) h + B(context), on the vectors of S states.

    What a stage tells the next, `out`, goes by the number of a state: the old one's, or in the
    last stage the new one's.
    """

    moves: Ints  # [contexts, S]: the new state after each old one
    out: Ints  # [contexts, S]
    start: int
    codewords: Ints  # [S, n, V]: the vector of each state; V columns go through A side by side
    points: Ints  # [contexts, n]: the axis that A takes each axis to, or -1
    writes: Ints  # [contexts]: the axis to which B writes 1, or -1


def check_size(contexts: int, axes: int, states: int) -> None:
    """Refuse a stage before it takes the memory."""
    cells = max(contexts * axes * axes, contexts * states, states * axes)
    if cells > MAX_CELLS:
        raise UserError(
            f"a layer with {contexts:,} contexts, {axes:,} axes and {states:,} states has tables "
            f"of {cells:,} numbers; at most {MAX_CELLS:,} are supported: a DFA with fewer symbols, "
            "such as a group's generators, or states needs fewer"
        )


def one_hot(level: Level) -> Stage:
    """A coordinate is an axis, a permutation moves the axes, a reset forgets all and writes."""
    check_size(level.contexts, level.width, level.width)
    reset = level.is_reset()
    return Stage(
        moves=level.moves,
        out=level.out,
        start=level.start,
        codewords=np.eye(level.width, dtype=np.int64)[:, :, None],
        points=np.where(reset[:, None], -1, level.moves),
        writes=np.where(reset, level.moves[:, 0], -1),
    )


def one_stage(dfa: DFA) -> Stage | None:
    """A DFA in one stage, if that can be seen at once.

    It is a permutation automaton: its group acts on as few points as it can. Or its symbols are
    permutations and resets: its states are the axes. Or one state is a sink for all symbols but
    resets, and these take no two states to one that is not the sink: the sink is the vector 0, so
    that matrices can forget states.
    """
    if is_permutation(dfa):
        return _least_action(dfa) or _on_states(dfa, dfa.states)
    resets = (dfa.delta == dfa.delta[:1]).all(axis=0)
    moved = dfa.delta[:, ~resets]
    if (np.sort(moved, axis=0) == np.arange(dfa.states)[:, None]).all():
        return _on_states(dfa, dfa.states)
    for sink in np.flatnonzero((moved == np.arange(dfa.states)[:, None]).all(axis=1)).tolist():
        kept = [column[column != sink] for column in moved.T]
        if all(len(np.unique(images)) == len(images) for images in kept):
            return _on_states(dfa, sink)
    return None


def _on_states(dfa: DFA, sink: int) -> Stage:
    """An axis for every state but the sink; dfa.states for none."""
    check_size(len(dfa.alphabet), dfa.states - (sink < dfa.states), dfa.states)
    states = np.arange(dfa.states)
    axis = np.where(states == sink, -1, states - (states > sink))
    live = states[states != sink]
    moves = dfa.delta.T
    reset = (moves == moves[:, :1]).all(axis=1) & (dfa.states > 1)
    points = np.where(reset[:, None], -1, axis[moves[:, live]])
    codewords = np.zeros((dfa.states, len(live), 1), dtype=np.int64)
    codewords[live, np.arange(len(live)), 0] = 1
    writes = np.where(reset, axis[moves[:, 0]], -1)
    return Stage(moves, np.tile(states, (len(moves), 1)), dfa.start, codewords, points, writes)


def _least_action(dfa: DFA) -> Stage | None:
    """By the group that the symbols generate, if it acts on fewer points than there are states."""
    symbols = list(dict.fromkeys(map(tuple, dfa.delta.T.tolist())))
    try:
        generated = group_from_generators("of the DFA", symbols)
        action = minimal_permutation_representation(generated)
    except UserError:  # too many elements, or subgroups, to tell: the states will do
        return None
    if action.shape[1] >= dfa.states or generated.permutations is None:
        return None
    numbers = {tuple(row): i for i, row in enumerate(generated.permutations.tolist())}
    letters = np.array([numbers[tuple(column)] for column in dfa.delta.T.tolist()])
    states = generated.permutations[:, dfa.start].astype(np.int64)
    return _of_group(generated, action.astype(np.int64), letters, states)


def group_stage(group: Group) -> tuple[DFA, Stage]:
    """The word problem of a group, all of whose elements are symbols, on the fewest points.

    The product grows on the right, matrices multiply from the left: the stage computes inverses.
    """
    try:
        action = minimal_permutation_representation(group)
    except UserError:  # not known to be the least: what it acts on, or its own elements
        action = group.table if group.permutations is None else group.permutations
    inverses = group.inverses()
    return word_problem(group), _of_group(group, action.astype(np.int64), inverses, inverses)


def _of_group(group: Group, action: Ints, letters: Ints, states: Ints) -> Stage:
    """State g holds the images of base points; letter a takes it to a g, whose DFA state is known.

    action: [order, points]; letters: [symbols], elements; states: [order].
    """
    points = action.shape[1]
    check_size(len(letters), points, group.order)
    base = _base(action)
    codewords = np.eye(points, dtype=np.int64)[action[:, base]].swapaxes(1, 2)
    return Stage(
        moves=group.table[letters].astype(np.int64),
        out=np.tile(states, (len(letters), 1)),
        start=0,
        codewords=codewords,
        points=action[letters],
        writes=np.full(len(letters), -1),
    )


def _base(action: Ints) -> list[int]:
    """Points whose images tell the elements apart, each chosen to tell as many as it can."""
    told = np.zeros(len(action), dtype=np.int64)
    base: list[int] = []
    while told.max() + 1 < len(action):
        finer = [
            np.unique(told * action.shape[1] + column, return_inverse=True)[1]
            for column in action.T
        ]
        best = max(range(len(finer)), key=lambda i: int(finer[i].max()))
        told = finer[best]
        base.append(best)
    return base or [0]


def remembering(stage: Stage) -> Stage:
    """The stage on (new, old) vectors, so that what comes next can read the old state (Theorem 4).

    A reset moves the vector to the second half and writes to the first. Any other context moves
    the first half and clears the second: the old state then follows from the new one. State
    (c, p) has the number c (S + 1) + p, with p = S for nothing in the second half.
    """
    contexts, S = stage.moves.shape
    n = stage.codewords.shape[1]
    check_size(contexts, 2 * n, S * (S + 1))
    reset = (stage.points < 0).all(axis=1) & (stage.writes >= 0)
    axes, nothing = np.arange(n), np.full((contexts, n), -1)
    points = np.concatenate([np.where(reset[:, None], n + axes, stage.points), nothing], axis=1)
    pairs = np.arange(S * (S + 1))
    current, previous = np.divmod(pairs, S + 1)
    moves = stage.moves[:, current] * (S + 1) + np.where(reset[:, None], current, S)
    vectors = np.concatenate([stage.codewords, np.zeros_like(stage.codewords[:1])])
    codewords = np.concatenate([vectors[current], vectors[previous]], axis=1)
    start = stage.start * (S + 1) + S
    return Stage(moves, stage.out, start, codewords, points, stage.writes)
