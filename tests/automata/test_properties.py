"""Properties of automata whose algebra is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from statetrack.automata import (
    DFA,
    Properties,
    TransitionMonoid,
    describe,
    from_regex,
    group,
    is_aperiodic,
    is_cyclic,
    is_permutation,
    is_permutation_reset,
    is_solvable,
)
from tests.automata.test_dfa import dfas


def word_problem(name: str) -> DFA:
    """The product of a word of group elements; accepted if it is the identity."""
    table = group(name).table
    alphabet = tuple(map(str, range(len(table))))
    return DFA(alphabet, table, 0, np.arange(len(table)) == 0)


def action(name: str) -> DFA:
    """Where the permutations of a group take point 0."""
    permutations = group(name).permutations
    assert permutations is not None
    alphabet = tuple(map(str, range(len(permutations))))
    return DFA(alphabet, permutations.T, 0, np.arange(permutations.shape[1]) == 0)


def dyck(depth: int) -> DFA:
    """Balanced brackets at most `depth` deep; the last state is the sink."""
    sink = depth + 1
    delta = [[d + 1, d - 1 if d else sink] for d in range(depth)] + [[sink, depth - 1], [sink] * 2]
    return DFA(("(", ")"), np.array(delta), 0, np.arange(depth + 2) == 0)


FLIP_FLOP = DFA(("set", "clear", "keep"), np.array([[1, 0, 0], [1, 0, 1]]), 0, np.array([0, 1]))
Z4_AND_RESET = DFA(("+", "0"), np.array([[1, 0], [2, 0], [3, 0], [0, 0]]), 0, np.arange(4) == 3)

# states, monoid, subgroups, permutation, permutation-reset, aperiodic, solvable, cyclic
KNOWN: dict[str, tuple[DFA, Properties]] = {
    "parity": (
        from_regex("(b*ab*a)*b*"),
        Properties(2, 2, (2,), True, True, False, True, True),
    ),
    "everything": (from_regex("(a|b)*"), Properties(1, 1, (1,), True, True, True, True, True)),
    "(ab)*": (from_regex("(ab)*"), Properties(3, 6, (1,), False, False, True, True, False)),
    # b leads to the sink from everywhere: a reset
    "(aa)*": (from_regex("(aa)*", "ab"), Properties(3, 3, (2, 1), False, True, False, True, False)),
    "flip-flop": (FLIP_FLOP, Properties(2, 3, (1,), False, True, True, True, False)),
    "Z4 and reset": (Z4_AND_RESET, Properties(4, 8, (4, 1), False, True, False, True, False)),
    "Z6": (word_problem("Z6"), Properties(6, 6, (6,), True, True, False, True, True)),
    "Z2 x Z2": (word_problem("Z2_x_Z2"), Properties(4, 4, (4,), True, True, False, True, False)),
    "Z2 x Z3": (word_problem("Z2_x_Z3"), Properties(6, 6, (6,), True, True, False, True, True)),
    "Q8": (word_problem("Q8"), Properties(8, 8, (8,), True, True, False, True, False)),
    "S3": (word_problem("S3"), Properties(6, 6, (6,), True, True, False, True, False)),
    "A4 x Z5": (
        word_problem("A4_x_Z5"),
        Properties(60, 60, (60,), True, True, False, True, False),
    ),
    "Z60": (word_problem("Z60"), Properties(60, 60, (60,), True, True, False, True, True)),
    "A5": (word_problem("A5"), Properties(60, 60, (60,), True, True, False, False, False)),
    "A5 on points": (action("A5"), Properties(5, 60, (60,), True, True, False, False, False)),
    "S5": (word_problem("S5"), Properties(120, 120, (120,), True, True, False, False, False)),
    "S4 on points": (action("S4"), Properties(4, 24, (24,), True, True, False, True, False)),
}


@pytest.mark.parametrize(("dfa", "expected"), KNOWN.values(), ids=KNOWN)
def test_known_examples(dfa: DFA, expected: Properties) -> None:
    assert describe(dfa) == expected
    assert is_permutation(dfa) == expected.is_permutation
    assert is_permutation_reset(dfa) == expected.is_permutation_reset
    assert is_aperiodic(dfa) == expected.is_aperiodic
    assert is_solvable(dfa) == expected.is_solvable
    assert is_cyclic(dfa) == expected.is_cyclic


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_dyck_of_bounded_depth_is_aperiodic(depth: int) -> None:
    found = describe(dyck(depth))
    assert found.states == depth + 2
    assert found.is_aperiodic
    assert found.is_solvable
    assert not found.is_permutation
    assert not found.is_permutation_reset


@pytest.mark.parametrize("pattern", ["(a|b)*aba(a|b)*", "a*b*", "aab", "(a|b)*bb"])
def test_star_free_languages_are_aperiodic(pattern: str) -> None:
    assert is_aperiodic(from_regex(pattern))


def test_a_group_that_is_not_solvable_beside_a_reset() -> None:
    s5 = action("S5")
    delta = np.concatenate([s5.delta, np.zeros((5, 1), dtype=int)], axis=1)
    found = describe(DFA((*s5.alphabet, "reset"), delta, 0, s5.accepting))
    assert found == Properties(5, 125, (120, 1), False, True, False, False, False)


def test_it_is_the_language_that_counts() -> None:
    # parity, with its even state doubled and a state that nothing reaches: no permutation as it is
    delta = np.array([[1, 2], [0, 2], [2, 0], [3, 0]])
    dfa = DFA(("0", "1"), delta, 0, np.array([True, True, False, False]))
    assert describe(dfa) == Properties(2, 2, (2,), True, True, False, True, True)


@given(dfas())
def test_definitions(dfa: DFA) -> None:
    minimal = dfa.minimal()
    monoid = TransitionMonoid(minimal)
    found = describe(dfa)
    elements = [tuple(row) for row in monoid.elements.tolist()]

    def powers(x: tuple[int, ...]) -> list[tuple[int, ...]]:
        out = [x]
        while (next_one := tuple(x[i] for i in out[-1])) not in out:
            out.append(next_one)
        return out

    def stabilises(x: tuple[int, ...]) -> bool:
        last = powers(x)[-1]
        return tuple(x[i] for i in last) == last

    assert found.is_aperiodic == all(map(stabilises, elements))
    assert found.is_permutation == all(len(set(x)) == minimal.states for x in elements)
    letters = [set(column) for column in minimal.delta.T.tolist()]
    assert found.is_permutation_reset == all(len(a) in (1, minimal.states) for a in letters)
    cyclic = found.is_permutation and any(len(powers(x)) == len(elements) for x in elements)
    assert found.is_cyclic == cyclic


def test_sums_modulo_m_are_cyclic() -> None:
    for m, steps in itertools.product([5, 12], [(1, 2), (0, 1)]):
        delta = (np.arange(m)[:, None] + np.array(steps)) % m
        found = describe(DFA(("x", "y"), delta, 0, np.arange(m) == 0))
        assert found == Properties(m, m, (m,), True, True, False, True, True)
