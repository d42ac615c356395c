"""Words whose powers go around a cycle of states: what a language counts modulo some m."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from statetrack.automata.dfa import DFA
from statetrack.automata.monoid import TransitionMonoid


@dataclass(frozen=True)
class Counter:
    """A word whose powers go around a cycle of states: the language counts them modulo m."""

    word: tuple[str, ...]
    m: int

    def __str__(self) -> str:
        letters = all(len(symbol) == 1 for symbol in self.word)
        return ("" if letters else " ").join(self.word)


def find_counters(dfa: DFA, monoid: TransitionMonoid | None) -> tuple[Counter, ...]:
    """Find for every m modulo which powers of a word are counted such a word, if possible a symbol.

    Args:
        dfa: minimal.
        monoid: that of the DFA, from some of its symbols or all; None: only single symbols count.
    """
    found: dict[int, tuple[str, ...]] = {}
    for symbol, step in zip(dfa.alphabet, dfa.delta.T, strict=True):
        before, lasting = 0, np.arange(dfa.states)
        while before != len(lasting):
            before, lasting = len(lasting), np.unique(step[lasting])
        # now it permutes what is left
        m = _order(np.searchsorted(lasting, step[lasting]).tolist())
        found.setdefault(m, (symbol,))
    if monoid is not None:
        seen = set()
        for subgroup in monoid.maximal_subgroups:
            key = subgroup.permutations.tobytes()
            if key not in seen:
                seen.add(key)
                orders = np.array([*map(_order, subgroup.permutations.tolist())])
                for m in set(orders.tolist()) - set(found):
                    found[m] = monoid.word(int(subgroup.elements[orders == m].min()))
    return tuple(Counter(found[m], m) for m in sorted(found) if m > 1)


def _order(permutation: list[int]) -> int:
    """The least power that is the identity: the least common multiple of its cycles' lengths."""
    order, seen = 1, [False] * len(permutation)
    for point in range(len(permutation)):
        length = 0
        while not seen[point]:
            seen[point] = True
            point = permutation[point]
            length += 1
        order = math.lcm(order, max(1, length))
    return order
