"""Regular languages with a name, against predicates on words."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from statetrack.tasks import make_task
from statetrack.tasks.languages import MAX_TASK_STATES, named_language
from tests.tasks.regular_languages import (
    LANGUAGES,
    each_language,
    encode,
    longest,
    matches,
    no_odd_zeros_after_odd_ones,
    words,
)


def test_tomita3_is_the_complement_of_its_regex() -> None:
    not_in = re.compile("((0|1)*0)*1(11)*(0(0|1)*1)*0(00)*(1(0|1)*)*")
    for word in words("01", 8):
        assert no_odd_zeros_after_odd_ones(word) == (not_in.fullmatch(word) is None)


def test_tomita7_is_its_regex() -> None:
    for word in words("01", 8):
        assert LANGUAGES["tomita7"][1](word) == matches("0*1*0*1*")(word)


@each_language
def test_membership_of_every_short_word(name: str) -> None:
    alphabet, member = LANGUAGES[name]
    dfa = make_task(name).automaton()
    assert dfa is not None
    assert "".join(dfa.alphabet) == alphabet
    for word in words(alphabet, longest(alphabet)):
        assert dfa.accepts(word) == member(word), word


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("flip_flop", 2),
        ("dyck1_depth1", 3),
        ("dyck1_depth3", 5),
        ("dyck1_depth128", 130),
        ("regex:(a|b)*a(a|b){9}", MAX_TASK_STATES),
        ("gridworld2", 2),
        ("gridworld5", 5),
        (f"gridworld{MAX_TASK_STATES}", MAX_TASK_STATES),
        *((f"tomita{n}", states) for n, states in enumerate([2, 3, 5, 4, 4, 3, 5], 1)),
    ],
)
def test_numbers_of_states(name: str, states: int) -> None:
    assert len(make_task(name).classes) == states


def test_the_state_of_dyck_is_the_depth() -> None:
    task = make_task("dyck1_depth3", supervision="dense")
    targets = task.solve(encode(task, ["()(())((()))", "((((", "())(()"]))
    # the sink, by ")", is found before depth 2
    depths = {0: "q0", 1: "q1", "out": "q2", 2: "q3", 3: "q4"}
    expected = [
        [1, 0, 1, 2, 1, 0, 1, 2, 3, 2, 1, 0],
        [1, 2, 3, "out"],
        [1, 0, "out", "out", "out", "out"],
    ]
    for row, depth in zip(targets, expected, strict=True):
        assert [task.vocab[t] for t in row[: len(depth)]] == [depths[d] for d in depth]


def test_the_state_of_the_gridworld_is_the_place() -> None:
    task = make_task("gridworld5", supervision="dense")
    targets = task.solve(encode(task, ["LRRLRRRRRLLLLLLR"]))[0]
    places = [int(task.vocab[t][1:]) for t in targets]
    assert places == [0, 1, 2, 1, 2, 3, 4, 4, 4, 3, 2, 1, 0, 0, 0, 1]


def test_flip_flop_keeps_the_last_write() -> None:
    task = make_task("flip_flop", supervision="dense")
    targets = task.solve(encode(task, ["iwiieiewwi"]))[0]
    assert [task.vocab[t] for t in targets] == [f"q{bit}" for bit in map(int, "0111000111")]


def test_a_random_dfa_can_be_had_again() -> None:
    def automaton(name: str) -> Any:
        named_language.cache_clear()
        return make_task(name).automaton()

    first = automaton("random_dfa8_seed0")
    assert first == automaton("random_dfa8_seed0")
    assert first.alphabet == ("a", "b")
    assert first.states == 8
    others = [automaton(f"random_dfa8_seed{seed}") for seed in (1, 2, 3)]
    assert len({first, *others, automaton("random_dfa9_seed0")}) == 5


@pytest.mark.parametrize(
    ("states", "seeds"), [*((n, 20) for n in range(2, 10)), (64, 5), (128, 5), (MAX_TASK_STATES, 1)]
)
def test_a_random_dfa_has_as_many_states_as_asked(states: int, seeds: int) -> None:
    found = set()
    for seed in range(seeds):
        dfa = make_task(f"random_dfa{states}_seed{seed}").automaton()
        assert dfa is not None
        assert dfa.states == states
        found.add(dfa.delta.tobytes())
    assert len(found) > seeds / 4


def test_random_dfas_are_uniform() -> None:
    """Of two states: the second is reached in 12 tables, and one of the two accepts."""
    counts = Counter(named_language(f"random_dfa2_seed{seed}") for seed in range(960))
    assert len(counts) == 24
    assert all(10 <= n <= 70 for n in counts.values())  # 40, and five standard deviations


def test_a_random_dfa_is_walked() -> None:
    task = make_task("random_dfa8_seed0", supervision="dense")
    dfa = task.automaton()
    assert dfa is not None
    table = dfa.delta.tolist()
    batch = task.sample(np.random.default_rng(0), np.full(20, 15))
    for word, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        state = dfa.start
        for token, target in zip(word, targets, strict=True):
            state = table[state][token - 1]
            assert task.vocab[target] == f"q{state}"
