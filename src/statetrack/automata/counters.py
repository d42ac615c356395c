"""Words that a language counts modulo some m: their powers run through a cycle of m states."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from statetrack.automata.dfa import DFA, Ints
from statetrack.automata.monoid import TransitionMonoid


@dataclass(frozen=True)
class Counter:
    """A word that the language counts modulo m."""

    word: tuple[str, ...]
    m: int

    def __str__(self) -> str:
        letters = all(len(symbol) == 1 for symbol in self.word)
        return ("" if letters else " ").join(self.word)


def find_counters(dfa: DFA, monoid: TransitionMonoid | None) -> tuple[Counter, ...]:
    """Find every m > 1 modulo which the language counts some word, each with one such word.

    The word is a single symbol if possible.

    Args:
        dfa: A minimal DFA.
        monoid: Its transition monoid, by all or some of its symbols; None: try symbols only.
    """
    found: dict[int, tuple[str, ...]] = {}
    for symbol, step in zip(dfa.alphabet, dfa.delta.T, strict=True):
        found.setdefault(cycle_length(step), (symbol,))
    if monoid is not None:
        tried = set()
        for subgroup in monoid.maximal_subgroups:
            key = subgroup.permutations.tobytes()
            if key not in tried:
                tried.add(key)
                orders = np.array([*map(_order, subgroup.permutations.tolist())])
                for m in set(orders.tolist()) - set(found):
                    found[m] = monoid.word(int(subgroup.elements[orders == m].min()))
    return tuple(Counter(found[m], m) for m in sorted(found) if m > 1)


def cycle_length(action: Ints) -> int:
    """The period with which the powers of a map [states] of states repeat in the end."""
    before, lasting = 0, np.arange(len(action))
    while before != len(lasting):
        before, lasting = len(lasting), np.unique(action[lasting])
    # now it permutes what is left
    return _order(np.searchsorted(lasting, action[lasting]).tolist())


def _order(permutation: list[int]) -> int:
    """Return the order of a permutation: the least common multiple of its cycles' lengths."""
    order, visited = 1, [False] * len(permutation)
    for point in range(len(permutation)):
        length = 0
        while not visited[point]:
            visited[point] = True
            point = permutation[point]
            length += 1
        order = math.lcm(order, max(1, length))
    return order
