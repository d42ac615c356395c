"""Least faithful permutation representations of groups."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.groups import Group
from statetrack.errors import UserError

WORK = 100_000_000  # products that the search for subgroups may look up: about a second
OVERHEAD = 5_000  # the products that could be looked up while numpy gets going

Mask = NDArray[np.bool_]  # [n]: which elements are in a subgroup


def minimal_permutation_representation(group: Group) -> NDArray[np.integer]:
    """[n, points]: distinct permutations that multiply as the elements do, on the fewest points.

    Each orbit is the set of cosets of a subgroup; a set of orbits is faithful if the intersection
    of the subgroups' cores is trivial. The cheapest set among all subgroups is the least. A group
    with so many that they are not all found in about a second has one only if what was found is
    on no more points than the elements' orders demand, else it is a UserError. A natural action
    that is no larger is kept.
    """
    natural = group.permutations
    if natural is not None and natural.shape[1] <= _demanded_points(group):
        return natural
    subgroups, all_found = _subgroups(group)
    orbits = _cheapest(subgroups, group.order)
    points = max(1, sum(group.order // int(members.sum()) for members in orbits))
    if natural is not None and natural.shape[1] > points:
        natural = None
    if natural is not None:
        points = natural.shape[1]
    if not all_found and points > _demanded_points(group):
        raise UserError(
            f"group {group.name} has too many subgroups to tell its least permutation "
            f"representation; it has one on {points} points"
        )
    if natural is not None:
        return natural
    if not orbits:  # the trivial group, on one point
        return np.zeros((1, 1), dtype=np.int16)
    actions: list[NDArray[np.int16]] = []
    for members in orbits:
        offset = sum(action.shape[1] for action in actions)
        actions.append(offset + _action_on_cosets(group, members))
    return np.concatenate(actions, axis=1)


def _demanded_points(group: Group) -> int:
    """A lower bound: the order divides points!, and an element has a cycle for each prime power."""
    by_order = next(k for k in itertools.count(1) if math.factorial(k) % group.order == 0)
    return max(by_order, *map(_cycle_points, np.unique(group.element_orders()).tolist()))


def _cycle_points(order: int) -> int:
    """The fewest points on which a permutation has this order: the sum of its prime powers."""
    points, prime = 0, 2
    while order > 1:
        power = 1
        while order % prime == 0:
            order, power = order // prime, power * prime
        points, prime = points + power * (power > 1), prime + 1
    return points


def _action_on_cosets(group: Group, members: Mask) -> NDArray[np.int16]:
    """[n, cosets]: a takes gH to agH; coset 0 is H."""
    least = group.table[:, members].min(axis=1)  # of each gH
    representatives, coset = np.unique(least, return_inverse=True)
    return coset[group.table[:, representatives]].astype(np.int16)


def _subgroups(group: Group) -> tuple[list[tuple[Mask, Mask]], bool]:
    """Proper subgroups, one of each conjugacy class, and their cores; and whether these are all.

    A subgroup that needs k generators is, up to conjugacy, one with k - 1 and a cyclic one. With
    the whole layer of each k, all are found, unless the work runs out.
    """
    n, table = group.order, group.table
    conjugates = table[table, group.inverses()[:, None]]  # [g, x] = g x g^-1
    trivial = np.arange(n) == 0
    found = [(trivial, trivial)]
    cyclic = list(_cyclic_subgroups(group))
    seen: set[bytes] = set()
    layer, work = [trivial], 0
    while layer:
        wider: list[Mask] = []
        for inside, (element, powers) in itertools.product(layer, cyclic):
            if inside[element]:
                continue
            both = np.flatnonzero(inside | powers)
            members = group.subgroup(both)
            work += OVERHEAD + len(both) * int(members.sum())
            if work > WORK:
                return found, False
            if members.all() or members.tobytes() in seen:
                continue
            conjugate = np.zeros((n, n), dtype=np.bool_)
            np.put_along_axis(conjugate, conjugates[:, members], True, axis=1)
            seen.update(row.tobytes() for row in conjugate)
            work += n * n
            found.append((members, np.asarray(conjugate.all(axis=0))))
            wider.append(members)
        layer = wider
    return found, True


def _cyclic_subgroups(group: Group) -> Iterator[tuple[int, Mask]]:
    """A generator and the elements of each cyclic subgroup that is not trivial."""
    orders = group.element_orders()
    done = orders == 1
    for element in range(group.order):
        if not done[element]:
            powers = group.subgroup([element])
            done |= powers & (orders == orders[element])  # the same subgroup's other generators
            yield element, powers


def _cheapest(subgroups: Iterable[tuple[Mask, Mask]], order: int) -> list[Mask]:
    """The subgroups of least total index whose cores meet in the identity, by Dijkstra."""
    whole, identity = (1 << order) - 1, 1
    by_core: dict[int, Mask] = {}  # the largest subgroup of each core; cores as bits
    for members, core in subgroups:
        bits = sum(1 << int(element) for element in np.flatnonzero(core))
        if bits not in by_core or members.sum() > by_core[bits].sum():
            by_core[bits] = members
    choices: list[tuple[int, int, Mask]] = []
    for target, members in sorted(by_core.items(), key=lambda item: -int(item[1].sum())):
        index = order // int(members.sum())
        kernel, cost = whole, 0  # do cheaper orbits do the same together?
        for other_index, bits, _ in choices:
            if bits & target == target and kernel & bits != kernel:
                kernel, cost = kernel & bits, cost + other_index
        if kernel != target or cost > index:
            choices.append((index, target, members))
    ties = itertools.count()  # masks have no order
    queue: list[tuple[int, int, int, list[Mask]]] = [(0, next(ties), whole, [])]
    done: set[int] = set()
    while True:
        cost, _, kernel, orbits = heapq.heappop(queue)
        if kernel == identity:
            return orbits
        if kernel in done:
            continue
        done.add(kernel)
        for index, bits, members in choices:
            if kernel & bits not in done and kernel & bits != kernel:
                entry = (cost + index, next(ties), kernel & bits, [*orbits, members])
                heapq.heappush(queue, entry)
