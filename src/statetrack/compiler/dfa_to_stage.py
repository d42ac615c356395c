"""DFA or group to a single stage, for languages that need no cascade (Theorem 3)."""

from __future__ import annotations

import numpy as np

from statetrack.automata import (
    DFA,
    Group,
    group_from_generators,
    minimal_permutation_representation,
)
from statetrack.compiler.cascade_to_stages import Stage, check_size
from statetrack.compiler.proof import Ints
from statetrack.errors import UserError


def dfa_to_stage(dfa: DFA) -> Stage | None:
    """Return a single stage that computes a minimal DFA, or None if it is of none of these forms.

    - Every symbol permutes the states: the axes are the fewest points on which their group acts.
    - Every symbol permutes the states or resets them: the axes are the states.
    - There is a sink that only resets leave, and every other symbol takes different states to
      different ones unless it takes them to the sink: the axes are the other states, and the sink
      is the vector 0.
    """
    permuted = np.sort(dfa.delta, axis=0) == np.arange(dfa.states)[:, None]
    if permuted.all():
        return _least_action(dfa) or states_as_axes(dfa, dfa.states)
    resets = (dfa.delta == dfa.delta[:1]).all(axis=0)
    moved = dfa.delta[:, ~resets]
    if permuted[:, ~resets].all():
        return states_as_axes(dfa, dfa.states)
    for sink in np.flatnonzero((moved == np.arange(dfa.states)[:, None]).all(axis=1)).tolist():
        kept = [column[column != sink] for column in moved.T]
        if all(len(np.unique(images)) == len(images) for images in kept):
            return states_as_axes(dfa, sink)
    return None


def states_as_axes(dfa: DFA, sink: int) -> Stage:
    """Give every state but the sink an axis; sink = dfa.states for none."""
    check_size(len(dfa.alphabet), dfa.states - (sink < dfa.states), dfa.states)
    states = np.arange(dfa.states)
    axis = np.where(states == sink, -1, states - (states > sink))
    live = states[states != sink]
    moves = dfa.delta.T
    reset = (moves == moves[:, :1]).all(axis=1) & (dfa.states > 1)
    axis_map = np.where(reset[:, None], -1, axis[moves[:, live]])
    codewords = np.zeros((dfa.states, len(live), 1), dtype=np.int64)
    codewords[live, np.arange(len(live)), 0] = 1
    writes = np.where(reset, axis[moves[:, 0]], -1)
    return Stage(moves, np.tile(states, (len(moves), 1)), dfa.start, codewords, axis_map, writes)


def _least_action(dfa: DFA) -> Stage | None:
    """Return a stage by the group that the symbols generate, on the fewest points it acts on.

    None if these are not fewer than the states, or if the group is too large.
    """
    symbols = list(dict.fromkeys(map(tuple, dfa.delta.T.tolist())))
    try:
        generated = group_from_generators("of the DFA", symbols)
        action = minimal_permutation_representation(generated)
    except UserError:  # too many elements or subgroups: the action on the states will do
        return None
    if action.shape[1] >= dfa.states or generated.permutations is None:
        return None
    numbers = {tuple(row): i for i, row in enumerate(generated.permutations.tolist())}
    letters = np.array([numbers[tuple(column)] for column in dfa.delta.T.tolist()])
    states = generated.permutations[:, dfa.start].astype(np.int64)
    return _action_to_stage(generated, action.astype(np.int64), letters, states)


def group_to_stage(group: Group) -> Stage:
    """Return the stage of a group's word problem, with all elements as symbols, on fewest points.

    A new symbol multiplies the product on the right, but a matrix multiplies the state on the left:
    so the stage computes the inverse of the product.
    """
    try:
        action = minimal_permutation_representation(group)
    except UserError:  # the fewest are not known: its own permutations, or those of its elements
        action = group.table if group.permutations is None else group.permutations
    inverses = group.inverses()
    return _action_to_stage(group, action.astype(np.int64), inverses, inverses)


def _action_to_stage(group: Group, action: Ints, letters: Ints, states: Ints) -> Stage:
    """Return the stage whose states are the elements g of a group that acts on points.

    The codeword of g has one column for each base point: the unit vector of its image. A symbol
    whose element is a takes g to a * g.

    Args:
        group: the group.
        action: [order, points]: the image of each point under each element.
        letters: [symbols]: the element of each symbol.
        states: [order]: the state of the DFA for each element.
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
        axis_map=action[letters],
        writes=np.full(len(letters), -1),
    )


def _base(action: Ints) -> list[int]:
    """Return points whose images distinguish all elements, chosen greedily."""
    classes = np.zeros(len(action), dtype=np.int64)
    base: list[int] = []
    while classes.max() + 1 < len(action):
        finer = [
            np.unique(classes * action.shape[1] + column, return_inverse=True)[1]
            for column in action.T
        ]
        best = max(range(len(finer)), key=lambda i: int(finer[i].max()))
        classes = finer[best]
        base.append(best)
    return base or [0]
