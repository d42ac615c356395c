"""DFAs: running, minimal form against Myhill and Nerode, JSON, and errors."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.automata import DFA, from_regex, read_dfa
from statetrack.errors import UserError


@st.composite
def dfas(draw: st.DrawFn, symbols: int = 2, most_states: int = 6, outputs: bool = False) -> DFA:
    states = draw(st.integers(1, most_states))
    state = st.integers(0, states - 1)
    row = st.lists(state, min_size=symbols, max_size=symbols)
    delta = draw(st.lists(row, min_size=states, max_size=states))
    accepting = draw(st.lists(st.booleans(), min_size=states, max_size=states))
    text = st.sampled_from(["x", "y", None])
    texts = draw(st.tuples(*[text] * states)) if outputs else None
    return DFA(tuple("abc"[:symbols]), np.array(delta), draw(state), np.array(accepting), texts)


def residual(dfa: DFA, state: int, longest: int) -> tuple[object, ...]:
    """Which of the words up to a length are accepted from a state, and what their output is."""
    table, out = dfa.delta.tolist(), []
    for n in range(longest + 1):
        for word in itertools.product(range(len(dfa.alphabet)), repeat=n):
            at = state
            for symbol in word:
                at = table[at][symbol]
            out.append((bool(dfa.accepting[at]), dfa.outputs and dfa.outputs[at]))
    return tuple(out)


def reachable(dfa: DFA) -> set[int]:
    found = {dfa.start}
    for _ in range(dfa.states):
        found |= {int(q) for p in found for q in dfa.delta[p]}
    return found


@given(dfas() | dfas(outputs=True))
def test_minimal_has_one_state_for_each_residual_language(dfa: DFA) -> None:
    # states of a DFA with n states that differ do so on a word shorter than n
    residuals = {residual(dfa, state, dfa.states - 1) for state in reachable(dfa)}
    minimal = dfa.minimal()
    assert minimal.states == len(residuals)
    assert minimal.alphabet == dfa.alphabet
    assert residual(minimal, minimal.start, 7) == residual(dfa, dfa.start, 7)


@given(dfas())
def test_minimal_is_numbered_breadth_first(dfa: DFA) -> None:
    minimal = dfa.minimal()
    assert minimal.start == 0
    seen = [0]
    for target in minimal.delta.ravel().tolist():  # rows in order: breadth first
        if target not in seen:
            seen.append(target)
    assert seen == list(range(minimal.states))
    assert minimal.minimal() == minimal


@given(dfas(), st.randoms(use_true_random=False))
def test_minimal_forgets_the_numbering(dfa: DFA, random: Any) -> None:
    new = list(range(dfa.states))
    random.shuffle(new)
    delta, accepting = np.empty_like(dfa.delta), np.empty_like(dfa.accepting)
    for state, number in enumerate(new):
        delta[number] = [new[target] for target in dfa.delta[state]]
        accepting[number] = dfa.accepting[state]
    renumbered = DFA(dfa.alphabet, delta, new[dfa.start], accepting)
    assert renumbered.minimal() == dfa.minimal()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(a*b)*a*", "(a|b)*"),
        ("a(ba)*", "(ab)*a"),
        ("a+", "aa*"),
        ("(a|b)*b&(a|b)*a", "(aa*)&(bb*)"),
    ],
)
def test_equal_languages_give_equal_dfas(one: str, other: str) -> None:
    assert from_regex(one, "ab") == from_regex(other, "ab")
    assert hash(from_regex(one, "ab")) == hash(from_regex(other, "ab"))


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("a*", "a+"), ("(ab)*", "(ba)*")])
def test_different_languages_give_different_dfas(one: str, other: str) -> None:
    assert from_regex(one, "ab") != from_regex(other, "ab")


def test_equality_is_of_everything() -> None:
    delta, accepting = np.array([[0, 1], [1, 0]]), np.array([True, False])
    dfa = DFA(("a", "b"), delta, 0, accepting)
    assert dfa == DFA(("a", "b"), delta.copy(), 0, accepting.copy())
    assert dfa != DFA(("a", "c"), delta, 0, accepting)
    assert dfa != DFA(("a", "b"), delta[::-1], 0, accepting)
    assert dfa != DFA(("a", "b"), delta, 1, accepting)
    assert dfa != DFA(("a", "b"), delta, 0, ~accepting)
    assert dfa != DFA(("a", "b"), delta, 0, accepting, ("x", "y"))
    assert dfa != "dfa"


def test_known_sizes() -> None:
    assert from_regex("(ab)*").states == 3  # with the sink
    assert from_regex("(a|b)*a(a|b){3}").states == 16
    assert from_regex(".*", "ab").states == 1
    assert from_regex("a&b").states == 1


def test_nobody_changes_a_dfa() -> None:
    delta = np.array([[0, 1], [1, 0]])
    dfa = DFA(("a", "b"), delta, 0, np.array([True, False]))
    delta[0, 0] = 1
    assert dfa.delta[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        dfa.delta[0, 0] = 1


@given(dfas(symbols=3), st.integers(0, 5), st.integers(0, 9), st.integers(0, 2**32))
def test_run_steps(dfa: DFA, batch: int, length: int, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 3, (batch, length))
    visited = dfa.run(words)
    assert visited.shape == (batch, length)
    for word, states in zip(words.tolist(), visited.tolist(), strict=True):
        at = dfa.start
        for symbol, state in zip(word, states, strict=True):
            at = int(dfa.delta[at, symbol])
            assert state == at
        accepted = dfa.accepts([dfa.alphabet[symbol] for symbol in word])
        assert accepted == bool(dfa.accepting[at])


def test_run_carries_on() -> None:
    dfa = from_regex("(a|b)*a(a|b){3}")
    words = np.random.default_rng(0).integers(0, 2, (7, 30))
    whole = dfa.run(words)
    head = dfa.run(words[:, :11])
    tail = dfa.run(words[:, 11:], head[:, -1])
    np.testing.assert_array_equal(np.concatenate([head, tail], axis=1), whole)
    np.testing.assert_array_equal(dfa.run(words, 5)[:, 0], dfa.delta[5, words[:, 0]])


@pytest.mark.parametrize("symbol", [-1, 2])
def test_run_refuses_other_symbols(symbol: int) -> None:
    with pytest.raises(UserError, match="symbols must be numbers from 0 to 1"):
        from_regex("(ab)*").run(np.array([[0, symbol]]))


def test_longer_symbols() -> None:
    dfa = DFA(
        ("push", "pop"), np.array([[1, 2], [2, 0], [2, 2]]), 0, np.array([True, False, False])
    )
    assert dfa.accepts(["push", "pop", "push", "pop"])
    assert not dfa.accepts(("push", "push"))
    assert dfa.accepts([])
    assert dfa.encode(["pop", "push"]).tolist() == [1, 0]
    with pytest.raises(UserError, match="unknown symbol 'p' in 'push'; known: push, pop"):
        dfa.accepts("push")
    assert dfa.minimal() == dfa


@given(dfas() | dfas(outputs=True))
def test_json_is_read_as_the_minimal_dfa(dfa: DFA) -> None:
    assert DFA.from_json(json.loads(json.dumps(dfa.to_json()))) == dfa.minimal()


PARITY: dict[str, Any] = {
    "alphabet": ["0", "1"],
    "start": "even",
    "accepting": ["odd"],
    "transitions": {"even": {"1": "odd", "0": "even"}, "odd": {"0": "odd", "1": "even"}},
}


def test_read_dfa(tmp_path: Path) -> None:
    (tmp_path / "parity.json").write_text(json.dumps(PARITY))
    dfa = read_dfa(tmp_path / "parity.json")
    assert dfa == DFA(("0", "1"), np.array([[0, 1], [1, 0]]), 0, np.array([False, True]))
    assert dfa.to_json()["transitions"] == {
        "q0": {"0": "q0", "1": "q1"},
        "q1": {"0": "q1", "1": "q0"},
    }
    assert dfa.accepts("0111")


def test_a_file_is_trimmed_and_minimised(tmp_path: Path) -> None:
    transitions = PARITY["transitions"] | {
        "even": {"0": "again", "1": "odd"},
        "again": {"0": "even", "1": "odd"},
        "nowhere": {"0": "odd", "1": "nowhere"},
    }
    (tmp_path / "larger.json").write_text(json.dumps(PARITY | {"transitions": transitions}))
    (tmp_path / "parity.json").write_text(json.dumps(PARITY))
    assert read_dfa(tmp_path / "larger.json") == read_dfa(tmp_path / "parity.json")


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(PARITY | {"start": "q7"}))
    with pytest.raises(UserError, match=f"^{re.escape(str(path))}: the start is 'q7'"):
        read_dfa(path)
    with pytest.raises(UserError, match="does not exist"):
        read_dfa(tmp_path / "missing.json")


EVEN = PARITY["transitions"]["even"]
BAD = [
    ([], "must be an object with alphabet, start, accepting, transitions; got"),
    ({"alphabet": ["a"]}, "got alphabet"),
    (PARITY | {"extra": 1}, "transitions, extra"),
    (PARITY | {"alphabet": []}, "needs an alphabet of at least one symbol"),
    (PARITY | {"alphabet": "01"}, "alphabet must be a list of symbols; got '01'"),
    (PARITY | {"alphabet": ["0", "1", "0"]}, "symbol '0' is in the alphabet twice"),
    (PARITY | {"alphabet": ["0", 1]}, "a symbol must be a text that is not empty; got 1"),
    (PARITY | {"alphabet": ["0", ""]}, "got ''"),
    (PARITY | {"alphabet": ["0", "1", "2"]}, "state 'even' has no transition on '2'"),
    (PARITY | {"alphabet": ["0"]}, "state 'even' has a transition on '1', which is not in the"),
    (PARITY | {"start": "q0"}, "the start is 'q0', a state that is not in transitions; known:"),
    (PARITY | {"start": ["even"]}, "the start is ['even']"),
    (PARITY | {"accepting": ["odd", "no"]}, "an accepting state is 'no'"),
    (PARITY | {"accepting": "odd"}, "accepting must be a list of states; got 'odd'"),
    (PARITY | {"transitions": []}, "transitions must be an object of objects"),
    (PARITY | {"transitions": {"even": ["odd"]}}, "transitions must be an object of objects"),
    (PARITY | {"transitions": {}}, "the start is 'even'"),
    (PARITY | {"transitions": {"even": EVEN}, "accepting": []}, "transition of 'even' on '1' is"),
    (PARITY | {"transitions": {"even": EVEN, "odd": {"0": "odd"}}}, "'odd' has no transition on"),
    (PARITY | {"outputs": {"odd": "1"}}, "outputs must be an object with one output per state"),
    (PARITY | {"outputs": ["0", "1"]}, "outputs must be an object with one output per state"),
    (PARITY | {"outputs": {"odd": 1, "even": "0"}}, "the output of 'odd' must be a text or null"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), BAD)
def test_bad_json(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        DFA.from_json(data, "here")
    assert str(error.value).startswith("here")


@pytest.mark.parametrize(
    ("delta", "start", "message"),
    [
        ([[0], [1]], 0, "table of shape (2, 1)"),
        ([[0, 1]], 0, "table of shape (1, 2)"),
        ([[0, 2], [0, 0]], 0, "next state must be 0 to 1; got 2"),
        ([[0, -1], [0, 0]], 0, "next state must be 0 to 1; got -1"),
        ([[0, 1], [0, 0]], 2, "start state must be 0 to 1; got 2"),
    ],
)
def test_bad_tables(delta: list[list[int]], start: int, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        DFA(("a", "b"), np.array(delta), start, np.array([True, False]))


def test_an_output_is_missing() -> None:
    with pytest.raises(UserError, match="an output for each of its 1 states; got 2"):
        DFA(("a",), np.array([[0]]), 0, np.array([True]), ("x", "y"))
