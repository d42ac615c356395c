"""Permutations and resets for layers whose keys and values are SiLUs, so never negative.

Of n points one is the hub, the one at the start. Its codeword is 0, where every kernel begins; that
of point i is u_i = (1, 1 | 1, 1 in the i-th place). Then u_i / 2 has length 1 and so has
(u_i - u_j) / 2, and all codewords have distance 2 from each other. One step of the delta rule with
k = u_i / 2, beta = 2 and v = 1,

    h -> h - u_i (u_i . h) / 2 + u_i,

swaps the hub with i and leaves the others alone. Such swaps make up every permutation, and after a
gate of 0 one of them is a reset. All numbers are halves of small integers: exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statetrack.compiler.induction import Ints
from statetrack.compiler.stages import Stage


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a stage as an automaton: the points that its 1 can be at, the hub first."""

    points: list[int]
    swaps: list[list[int]]  # for each context the places, 1 and up, to swap with the hub in turn
    reset: list[bool]  # for each context whether a gate of 0 comes first
    place: Ints  # [S]: where the 1 of each state is, 0 for the hub, -1 if it never is there


def columns(stage: Stage) -> list[Column]:
    """The columns of a stage of permutations and resets."""
    return [_column(stage, v) for v in range(stage.codewords.shape[2])]


def _column(stage: Stage, v: int) -> Column:
    at = stage.codewords[:, :, v].argmax(axis=1)
    hub = int(at[stage.start])
    found = [hub]
    for point in found:  # grows while it is read
        nearby = [*stage.points[:, point].tolist(), *stage.writes.tolist()]
        found += dict.fromkeys(p for p in nearby if p >= 0 and p not in found)
    number = {point: i for i, point in enumerate(found)}
    swaps, reset = [], []
    for points, written in zip(stage.points.tolist(), stage.writes.tolist(), strict=True):
        forgets = max(points) < 0
        reset.append(forgets)
        if forgets:
            swaps.append([number[written]] if number[written] else [])
        else:
            swaps.append(hub_swaps([number[points[point]] for point in found]))
    place = np.array([number.get(point, -1) for point in at.tolist()])
    return Column(found, swaps, reset, place)


def hub_swaps(points: list[int]) -> list[int]:
    """A permutation, given by the image of each point, as swaps with point 0, the first at first.

    A cycle of l points takes l - 1 if the hub is one of them, else l + 1.
    """
    swaps: list[int] = []
    done = {0}
    cycle = points[0]
    while cycle != 0:
        swaps.append(cycle)
        done.add(cycle)
        cycle = points[cycle]
    for first in range(1, len(points)):
        if first not in done and points[first] != first:
            around = [first]
            while points[around[-1]] != first:
                around.append(points[around[-1]])
            done.update(around)
            swaps += [*around, first]
    return swaps
