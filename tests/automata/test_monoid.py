"""Transition monoids against brute force over words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from statetrack.automata import DFA, TransitionMonoid, from_regex
from statetrack.errors import UserError
from tests.automata.test_dfa import dfas

Mapping = tuple[int, ...]


def brute_force(dfa: DFA) -> dict[Mapping, str]:
    """Every mapping of the states by a word, with its first word by length, then alphabet."""
    table = dfa.delta.tolist()
    found: dict[Mapping, str] = {}
    for length in itertools.count():
        size = len(found)
        for word in itertools.product(range(len(dfa.alphabet)), repeat=length):
            mapping = []
            for state in range(dfa.states):
                for symbol in word:
                    state = table[state][symbol]
                mapping.append(state)
            found.setdefault(tuple(mapping), "".join(dfa.alphabet[a] for a in word))
        if len(found) == size:  # nothing new of this length: nothing new of a greater one
            return found
    raise AssertionError


# small enough to enumerate words: at most 3 states
SMALL = ["(ab)*", "(b*ab*a)*b*", "(a|b)*a", "(a|b)*b(a|b)*", "((a|b)(a|b)(a|b))*", "a*b*"]
EXAMPLES = [from_regex(pattern) for pattern in SMALL]


@pytest.mark.parametrize("dfa", EXAMPLES, ids=SMALL)
def test_elements_and_words(dfa: DFA) -> None:
    monoid = TransitionMonoid(dfa)
    expected = brute_force(dfa)
    assert [tuple(row) for row in monoid.elements.tolist()] == list(expected)
    words = ["".join(monoid.word(i)) for i in range(len(monoid))]
    assert words == list(expected.values())
    assert [monoid.index(mapping) for mapping in expected] == list(range(len(monoid)))


def compose(monoid: TransitionMonoid, first: int, second: int) -> int:
    """The element of a word of `first` followed by a word of `second`."""
    return monoid.index(monoid.elements[second][monoid.elements[first]])


@pytest.mark.parametrize("dfa", EXAMPLES, ids=SMALL)
def test_composition_is_that_of_words(dfa: DFA) -> None:
    monoid = TransitionMonoid(dfa)
    for a, b in itertools.product(range(len(monoid)), repeat=2):
        word = dfa.encode((*monoid.word(a), *monoid.word(b)))
        states = np.arange(dfa.states)
        for symbol in word:
            states = dfa.delta[states, symbol]
        assert compose(monoid, a, b) == monoid.index(states)
    for symbol, element in enumerate(monoid.steps[0]):
        np.testing.assert_array_equal(monoid.elements[element], dfa.delta[:, symbol])
        for a in range(len(monoid)):
            assert monoid.steps[a, symbol] == compose(monoid, a, element)


@given(dfas(most_states=3))  # all pairs of elements are looked at
def test_idempotents_and_maximal_subgroups(dfa: DFA) -> None:
    monoid = TransitionMonoid(dfa)
    everything = range(len(monoid))
    times = [[compose(monoid, a, b) for b in everything] for a in everything]
    idempotents = [e for e in everything if times[e][e] == e]
    assert monoid.idempotents.tolist() == idempotents
    assert [g.idempotent for g in monoid.maximal_subgroups] == idempotents
    for subgroup in monoid.maximal_subgroups:
        # the units of eMe, by definition
        e = subgroup.idempotent
        local = [x for x in everything if times[e][x] == x == times[x][e]]
        units = [x for x in local if any(times[x][y] == e == times[y][x] for y in local)]
        assert subgroup.elements.tolist() == units
        assert subgroup.order == len(units)
        # a faithful action on the image, the second factor last
        permutations = [tuple(p) for p in subgroup.permutations.tolist()]
        assert len(set(permutations)) == len(units)
        assert all(sorted(p) == list(range(len(p))) for p in permutations)
        for (x, p), (y, q) in itertools.product(zip(units, permutations, strict=True), repeat=2):
            assert permutations[units.index(times[x][y])] == tuple(q[i] for i in p)


def test_all_mappings_of_four_states() -> None:
    delta = np.array([[1, 2, 3, 0], [1, 0, 2, 3], [0, 0, 2, 3]]).T
    monoid = TransitionMonoid(DFA(("c", "s", "m"), delta, 0, np.arange(4) == 0))
    assert len(monoid) == 4**4
    # idempotents of rank k: choose the image, take everything else into it; their groups are S_k
    orders = [g.order for g in monoid.maximal_subgroups]
    assert {n: orders.count(n) for n in set(orders)} == {24: 1, 6: 4 * 3, 2: 6 * 2**2, 1: 4}


def test_the_size_bound() -> None:
    delta = np.array([[1, 2, 3, 0], [1, 0, 2, 3], [0, 0, 2, 3]]).T
    dfa = DFA(("c", "s", "m"), delta, 0, np.arange(4) == 0)
    assert len(TransitionMonoid(dfa, max_size=256)) == 256
    with pytest.raises(UserError, match="4 states and 3 symbols has more than 255 elements"):
        TransitionMonoid(dfa, max_size=255)


@pytest.mark.parametrize("mapping", [[1, 0, 2], [0, 1], [0, 1, 2, 3]])
def test_a_mapping_that_is_not_there(mapping: list[int]) -> None:
    with pytest.raises(UserError, match="is not in the transition monoid"):
        TransitionMonoid(from_regex("(ab)*")).index(mapping)
