"""The automata of the regular tasks against `solve`: the output after each token is the target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from statetrack.automata import DFA, describe
from statetrack.tasks import IGNORE, Task, make_task

FRAME = {"PAD", "BOS", "=", "OUT"}

# name, options, states of the minimal automaton
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("parity", {}, 2),
    ("even_pairs", {}, 5),
    ("cycle_navigation", {}, 5),
    ("cycle_navigation", {"cycle_size": 6}, 6),
    ("modular_arithmetic", {}, 51),  # (sum, term) twice over, and what is no expression
    ("modular_arithmetic", {"modulus": 2}, 9),
    ("modular_arithmetic", {"modulus": 6}, 73),
    ("chomsky/parity_check", {}, 2),
    ("chomsky/even_pairs", {}, 5),
    ("chomsky/cycle_navigation", {}, 5),
    ("chomsky/modular_arithmetic", {}, 51),
    ("board", {}, 16),
    ("board", {"width": 1, "height": 3}, 3),
    ("board", {"width": 2, "height": 2, "pieces": 2}, 28),  # a square is the last of 1 or 2
    ("board", {"width": 3, "height": 2, "pieces": 3}, 546),
    ("S3", {}, 6),
    ("S5_only_swaps", {}, 120),
    ("Z60", {}, 60),
    ("D4", {"generators": (1, 4)}, 8),
    ("S3", {"tokens_per_element": 2}, 6 + 36 + 1),
    ("S3", {"tokens_per_element": 2, "filler": "repeat"}, 6 + 36),
    ("S3", {"tokens_per_element": 4}, 6 + 3 * 36 + 1),
    ("S3", {"tokens_per_element": 4, "filler": "repeat"}, 6 + 3 * 36),
    ("S3", {"tokens_per_element": 4, "filler": "special_both"}, 1 + 6 + 2 * 3 * 6 + 1),
    ("S5_only_swaps", {"tokens_per_element": 3, "filler": "repeat"}, 120 + 2 * 11 * 120),
    ("Z60", {"tokens_per_element": 2}, 60 + 3600 + 1),
    ("tomita5", {}, 4),
    ("tomita4", {"predict": "membership"}, 4),
    ("dyck1_depth3", {"predict": "next_symbols"}, 5),
    ("regex:(a|b)*abb", {}, 4),
]
each = pytest.mark.parametrize(
    ("name", "options", "states"), CASES, ids=[f"{name} {options}" for name, options, _ in CASES]
)


def automaton(task: Task) -> DFA:
    dfa = task.automaton()
    assert dfa is not None
    return dfa


def outputs(task: Task, dfa: DFA, row: list[int]) -> list[str | None]:
    """What the automaton answers on each token of an unpadded row; nothing before it began."""
    assert dfa.outputs is not None
    state, began, out = dfa.start, False, []
    for text in (task.vocab[token] for token in row):
        if text not in FRAME:
            state, began = int(dfa.delta[state, dfa.alphabet.index(text)]), True
        out.append(dfa.outputs[state] if began else None)
    return out


def target_texts(task: Task, targets: list[int]) -> list[str | None]:
    """Targets by name; the classes of the Chomsky suite are numbers and no tokens."""
    is_suite = task.name.startswith("chomsky/")
    names = [str(target) if is_suite else task.vocab[target] for target in targets]
    return [None if target == IGNORE else name for target, name in zip(targets, names, strict=True)]


@each
def test_the_outputs_are_the_targets(name: str, options: dict[str, Any], states: int) -> None:
    task = make_task(name, **options)
    if "supervision" in {*task.__dataclass_fields__}:
        task = make_task(name, **options, supervision="dense")
    dfa = automaton(task)
    least = task.min_length
    lengths = np.tile([least, least + 1, least + 2, 3 * least, 12, 31], 15)
    batch = task.sample(np.random.default_rng(0), lengths)
    asked = 0
    for row, expected in zip(batch.tokens, batch.targets, strict=True):
        size = int((row != task.pad).sum())
        answers = outputs(task, dfa, row[:size].tolist())
        for answer, target in zip(
            answers, target_texts(task, expected[:size].tolist()), strict=True
        ):
            if target not in (None, "BOS"):
                assert answer == target
                asked += 1
    assert asked >= len(lengths)


@each
def test_it_is_minimal(name: str, options: dict[str, Any], states: int) -> None:
    dfa = automaton(make_task(name, **options))
    assert dfa.states == states
    assert dfa.minimal() == dfa


def test_the_automaton_of_full_s5_with_four_tokens() -> None:
    task = make_task("S5", tokens_per_element=4)
    dfa = automaton(task)
    assert dfa.states == 120 + 3 * 120 * 120 + 1
    assert dfa.outputs is not None
    batch = task.sample(np.random.default_rng(0), np.full(20, 64))
    elements = np.where(batch.tokens[:, 1:] == 120, dfa.alphabet.index("FILL"), batch.tokens[:, 1:])
    answers = np.array(dfa.outputs)[dfa.run(elements)]
    np.testing.assert_array_equal(answers.astype(int), batch.targets[:, 1:])


@pytest.mark.parametrize("filler", ["special", "repeat", "special_both"])
def test_blocks_that_are_cut(filler: str) -> None:
    """The least lengths, where a block is not yet full, of every word of a group."""
    task = make_task("Z3", tokens_per_element=3, filler=filler)
    dfa = automaton(task)
    for length in range(1, 9):
        batch = task.sample(np.random.default_rng(length), np.full(40, length))
        for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            expected = target_texts(task, targets)
            assert outputs(task, dfa, row)[1:] == expected[1:]


@pytest.mark.parametrize("name", ["modular_arithmetic", "chomsky/modular_arithmetic"])
@pytest.mark.parametrize("text", ["+", "1 2", "1 + - 2", "* 3", "1 + 2 3"])
def test_what_is_no_expression_has_no_value(name: str, text: str) -> None:
    dfa = automaton(make_task(name))
    assert dfa.outputs is not None
    state = dfa.start
    for symbol in text.split():
        state = int(dfa.delta[state, dfa.alphabet.index(symbol)])
    assert dfa.outputs[state] is None
    assert (dfa.delta[state] == state).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("board", {"width": 26, "height": 26, "pieces": 2}),
        ("modular_arithmetic", {"modulus": 71}),
        ("S6", {"tokens_per_element": 5}),
        ("modular_arithmetic_brackets", {}),
        ("chomsky/reverse_string", {}),
    ],
    ids=str,
)
def test_too_large_or_not_regular(name: str, options: dict[str, Any]) -> None:
    assert make_task(name, **options).automaton() is None


@pytest.mark.parametrize(
    ("name", "accepted", "rejected"),
    [
        ("parity", "0 1 0", "1 1"),
        ("even_pairs", "a b a b", "b a b"),
        ("chomsky/parity_check", "1", "1 0 1"),
        ("chomsky/even_pairs", "0 0 1", "1 0 1"),
        ("cycle_navigation", "back forward stay", "forward forward"),
        ("modular_arithmetic", "2 + 2 * 4", "1"),
        ("board", "N S W", "N E"),
        ("Z60", "20 40", "20 20"),
    ],
)
def test_accepting(name: str, accepted: str, rejected: str) -> None:
    dfa = automaton(make_task(name))
    assert dfa.accepts(accepted.split())
    assert not dfa.accepts(rejected.split())


def test_what_kind_of_automata_they_are() -> None:
    """The answers of more than two classes are told apart, so the group is the whole one."""
    found = {
        name: describe(automaton(make_task(name)))
        for name in ("parity", "cycle_navigation", "even_pairs", "modular_arithmetic", "board")
    }
    assert found["parity"].is_cyclic
    assert found["parity"].monoid_size == 2
    assert found["cycle_navigation"].is_cyclic
    assert found["cycle_navigation"].monoid_size == 5
    assert found["even_pairs"].is_aperiodic
    assert found["board"].is_aperiodic
    assert found["modular_arithmetic"].is_solvable
    assert found["modular_arithmetic"].subgroup_orders == (5, 4, 1)  # of sums, and of products
