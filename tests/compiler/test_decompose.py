"""Cascades do what their DFAs do, in no more levels than promised."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

from statetrack.automata import DFA, Group, group, is_aperiodic, is_permutation
from statetrack.compiler import Cascade, decompose, dfa_to_cascade, limits, tilings
from statetrack.errors import UserError
from tests.compiler.cascades import verify
from tests.compiler.languages import LANGUAGES, random_dfa

METHODS = ("holonomy", "strict", "banned")


def reachable_by_hand(cascade: Cascade) -> int:
    """The cascade states that can be reached, each compared with the DFA, one by one."""
    dfa = cascade.dfa
    start = tuple(cascade.start.tolist())
    seen, pending = {start}, [(start, dfa.start)]
    for states, state in pending:  # grows while it is read
        assert cascade.decode(np.array([states]))[0] == state
        for symbol in range(len(dfa.alphabet)):
            after = tuple(cascade.step(np.array([states]), np.array([symbol]))[0].tolist())
            if after not in seen:
                seen.add(after)
                pending.append((after, int(dfa.delta[state, symbol])))
    return len(seen)


def random_aperiodic(rng: np.random.Generator) -> DFA:
    while True:
        dfa = random_dfa(rng, int(rng.integers(3, 7))).minimal()
        if dfa.states > 2 and is_aperiodic(dfa):
            return dfa


def test_random_automata_that_need_not_be_minimal() -> None:
    rng = np.random.default_rng(0)
    for i in range(80):
        dfa = random_dfa(rng, 3 + i % 8)
        cascades = [decompose(dfa, method) for method in METHODS]
        for cascade in cascades:
            assert verify(cascade).holds
            words = rng.integers(2, size=(20, 30))
            states = np.tile(cascade.start, (20, 1))
            for t in range(30):
                states = cascade.step(states, words[:, t])
            np.testing.assert_array_equal(cascade.decode(states), dfa.run(words)[:, -1])
        assert [level.states for level in cascades[2].levels] == list(range(dfa.states, 1, -1))
        best = decompose(dfa)
        assert best.cost <= min(cascade.cost for cascade in cascades)
        assert len(best.levels) <= dfa.states - 1


@pytest.mark.parametrize("method", METHODS)
def test_states_one_by_one(method: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(15):
        dfa = random_dfa(rng, int(rng.integers(2, 6)), 3)
        assert reachable_by_hand(decompose(dfa, method)) >= len(np.unique(dfa.minimal().delta))


@pytest.mark.parametrize("name", LANGUAGES)
def test_levels_of_known_languages(name: str) -> None:
    language = LANGUAGES[name]
    cascade = decompose(language)
    assert verify(cascade).holds
    if isinstance(language, Group):  # the word problem: every element permutes
        assert [level.states for level in cascade.levels] == [language.order]
        assert cascade.levels[0].rules == language.order
        return
    known = {
        "parity": 1, "tomita1": 1, "tomita2": 2, "tomita3": 4, "tomita4": 3, "tomita5": 1,
        "tomita6": 1, "tomita7": 3, "(ab)*": 2, "a*b*": 2, "[ab]*aba[ab]*": 3, "dyck1_depth3": 4,
        "flip_flop": 1, "modular_arithmetic": 3,
    }  # fmt: skip
    assert len(cascade.levels) == known[name]
    if is_permutation(language):
        assert len(cascade.levels) == 1


def test_groups_have_one_level() -> None:
    table = group("S4").table.astype(np.int64)
    dfa = DFA(tuple(map(str, range(24))), table, 0, np.arange(24) == 0)
    assert [level.states for level in decompose(dfa).levels] == [24]


def test_strict_levels_of_star_free_languages_never_permute() -> None:
    rng = np.random.default_rng(2)
    for _ in range(40):
        cascade = decompose(random_aperiodic(rng), "strict")
        assert not any(level.permutations for level in cascade.levels)
        assert verify(cascade).holds


def test_every_mapping_of_five_states() -> None:
    # a cycle, a swap and a merge generate them all: the worst case
    delta = np.array([[1, 1, 0], [2, 0, 0], [3, 2, 2], [4, 3, 3], [0, 4, 4]])
    dfa = DFA(("a", "b", "c"), delta, 0, np.arange(5) == 0)
    for method in METHODS:
        cascade = decompose(dfa, method)
        assert [level.states for level in cascade.levels] == [5, 4, 3, 2]
        assert reachable_by_hand(cascade) == 120
        assert verify(cascade).holds


def test_one_state_has_no_levels() -> None:
    dfa = DFA(("a",), np.zeros((1, 1), dtype=np.int64), 0, np.array([True]))
    for method in ("auto", *METHODS):
        cascade = decompose(dfa, method)
        assert cascade.levels == ()
        assert verify(cascade).holds


def test_a_wrong_move_is_refuted_by_a_word() -> None:
    dfa = LANGUAGES["tomita3"]
    assert isinstance(dfa, DFA)
    cascade = decompose(dfa)
    found = 0
    for i, level in enumerate(cascade.levels):
        for place in itertools.product(*map(range, level.moves.shape)):
            moves = level.moves.copy()
            moves[place] = 1 - moves[place]
            changed = dataclasses.replace(level, moves=moves)
            levels = (*cascade.levels[:i], changed, *cascade.levels[i + 1 :])
            wrong = dataclasses.replace(cascade, levels=levels)
            proof = verify(wrong)
            if proof.holds:  # by chance, the states are not in use
                assert reachable_by_hand(wrong)
                continue
            found += 1
            assert proof.counterexample is not None
            word = dfa.encode(proof.counterexample)
            states = wrong.start[None]
            for symbol in word:
                states = wrong.step(states, symbol[None])
            assert wrong.decode(states)[0] != dfa.run(word[None])[0, -1]
    assert found > 10


def test_a_wrong_start_is_refuted_by_the_empty_word() -> None:
    dfa = LANGUAGES["flip_flop"]
    assert isinstance(dfa, DFA)
    cascade = decompose(dfa)
    level = dataclasses.replace(cascade.levels[0], start=1 - cascade.levels[0].start)
    proof = verify(dataclasses.replace(cascade, levels=(level,)))
    assert proof.counterexample == ()
    assert "the empty word" in str(proof)


def test_it_prints_and_counts() -> None:
    cascade = decompose(LANGUAGES["tomita3"])  # type: ignore[arg-type]
    text = str(cascade)
    assert "Cascade of 4 levels for a DFA with 5 states and 2 symbols" in text
    assert "{0,1,2,3,4} -> {0,1,2,3,4} on 0: reset to" in text
    stats = json.loads(json.dumps(cascade.stats()))
    assert [level["states"] for level in stats["levels"]] == [2, 2, 2, 2]
    for level in stats["levels"]:
        parts = level["identities"] + level["permutations"] + level["resets"]
        assert level["rules"] == parts


def test_unknown_method() -> None:
    with pytest.raises(UserError, match="method must be one of auto, holonomy, strict, banned"):
        decompose(LANGUAGES["flip_flop"], "none")  # type: ignore[arg-type]


def test_limits_name_numbers_and_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    dfa = random_dfa(np.random.default_rng(0), 10)
    monkeypatch.setattr(limits, "MAX_CASCADE_IMAGES", 5)
    with pytest.raises(UserError, match=r"more than 5 different sets.*'auto' tries the others"):
        decompose(dfa, "strict")
    assert decompose(dfa).method == "banned"
    monkeypatch.setattr(limits, "MAX_CASCADE_RULES", 7)
    with pytest.raises(UserError, match=r"more than 7 update rules.*'auto' tries the others"):
        decompose(dfa, "banned")
    with pytest.raises(
        UserError, match=r"10 states.*5 different sets.*7 update rules.*smaller"
    ) as found:
        decompose(dfa)
    assert "tries the others" not in str(found.value)  # they have been tried


def test_auto_never_has_more_levels_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only a longer cascade is within the limits, it says so and names it."""
    refused = 0
    for seed in range(40):
        dfa = random_dfa(np.random.default_rng(seed), 8)
        sizes = {method: len(decompose(dfa, method).levels) for method in METHODS[:2]}
        shortest = min(METHODS[:2], key=lambda method: sizes[method])
        levels = sizes[shortest]
        if levels < dfa.states:
            continue
        refused += 1
        with monkeypatch.context() as patch:
            real = dfa_to_cascade.BannedStateTiling

            def too_large(dfa: DFA, real: type = real) -> tilings.Tiling:
                patch.setattr(limits, "MAX_CASCADE_RULES", 10)
                return real(dfa)

            patch.setattr(dfa_to_cascade, "BannedStateTiling", too_large)
            says = rf"at most 7 levels.*'banned'.*10 update.*'{shortest}', by name, has {levels}"
            with pytest.raises(UserError, match=says):
                decompose(dfa)
        assert decompose(dfa).method == "banned"
    assert refused


def test_the_limit_of_the_search_for_a_word() -> None:
    cascade = decompose(LANGUAGES["modular_arithmetic"])  # type: ignore[arg-type]
    tree = (*cascade.tree[:-1], np.roll(cascade.tree[-1], 1, axis=1))
    level = cascade.levels[-1]
    moves = level.moves.copy()
    moves[-1] = moves[-1, 0]
    last = dataclasses.replace(level, moves=moves)
    wrong = dataclasses.replace(cascade, levels=(*cascade.levels[:-1], last))
    assert not verify(wrong).holds
    with pytest.raises(UserError, match="more than 3 states can be reached"):
        verify(wrong, max_states=3)
    assert not verify(dataclasses.replace(cascade, tree=tree)).holds
