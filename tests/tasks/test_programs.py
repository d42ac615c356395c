"""Programs, against Python itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.tasks import IGNORE, Task, make_task

VARIANTS: list[dict[str, Any]] = [
    {},
    {"conditionals": False},
    {"variables": 1, "modulus": 2},
    {"variables": 26, "modulus": 12},
]


def run(text: str, variables: int, modulus: int) -> int:
    """The value that a program's question asks for: a statement per line, all values reduced."""
    *statements, question = text.split(" ; ")
    state = dict.fromkeys("abcdefghijklmnopqrstuvwxyz"[:variables], 0)
    for statement in statements:
        exec(statement, {}, state)
        state = {name: value % modulus for name, value in state.items()}
    assert question[1:] == " ?"
    return state[question[0]]


def text_of(task: Task, tokens: np.ndarray) -> str:
    return " ".join(task.vocab[token] for token in tokens if token != task.pad)


def check(task: Task, tokens: np.ndarray, targets: np.ndarray) -> None:
    for row, found in zip(tokens, targets, strict=True):
        value = run(text_of(task, row), task.variables, task.modulus)
        expected = np.full(len(row), IGNORE)
        expected[row == task.vocab.index("?")] = task.vocab.index(str(value))
        np.testing.assert_array_equal(found, expected)


@given(st.data(), st.integers(1, 4), st.integers(2, 7))
def test_solve(data: st.DataObject, variables: int, modulus: int) -> None:
    task = make_task("programs", variables=variables, modulus=modulus)
    variable = st.sampled_from("abcd"[:variables])
    term = st.one_of(variable, st.integers(0, modulus - 1).map(str))
    sign = st.sampled_from(["+", "-"])
    statement = st.builds(
        " ".join,
        st.tuples(
            st.one_of(st.just(""), st.builds("if {} == {} :".format, variable, term)),
            st.builds("{} =".format, variable),
            st.sampled_from(["", "-"]),
            term,
            st.one_of(st.just(""), st.builds("{} {}".format, sign, term)),
            st.just(";"),
        ),
    )
    rows = [
        [*" ".join(statements).split(), asked, "?"]
        for statements, asked in data.draw(
            st.lists(st.tuples(st.lists(statement, max_size=12), variable), min_size=1, max_size=4)
        )
    ]
    tokens = np.zeros((len(rows), max(map(len, rows)) + data.draw(st.integers(0, 2))), dtype=int)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = [task.vocab.index(word) for word in row]
    check(task, tokens, task.solve(tokens))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_samples(options: dict[str, Any]) -> None:
    task = make_task("programs", **options)
    batch = task.sample(np.random.default_rng(0), np.array([*range(6, 40), 200, 7, 6]))
    check(task, batch.tokens, batch.targets)


@pytest.mark.parametrize("length", range(6, 20))
def test_batches_of_one_short_length(length: int) -> None:
    task = make_task("programs")
    batch = task.sample(np.random.default_rng(0), np.full(60, length))
    assert batch.tokens.shape == (60, length)
    assert (batch.tokens != task.pad).all()
    check(task, batch.tokens, batch.targets)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a ?", "0"),
        ("a = 3 ; a ?", "3"),
        ("a = - 3 ; a ?", "2"),
        ("a = 3 ; b = a + a ; b ?", "1"),
        ("a = 3 ; b = - a - 4 ; b ?", "3"),
        ("a = 3 ; if a == 3 : b = a - 1 ; b ?", "2"),
        ("a = 3 ; if a == b : b = 1 ; b ?", "0"),
        ("if a == b : b = 1 ; if a == b : b = 2 ; b ?", "1"),
        ("a = 2 ; if b == 1 : b = 4 ; a = a + 1 ; a ?", "3"),  # the guard ends with its line
    ],
)
def test_a_program(text: str, value: str) -> None:
    task = make_task("programs")
    tokens = np.array([[task.vocab.index(word) for word in text.split()] + [0, 0]])
    targets = task.solve(tokens)[0]
    assert (targets[:-3] == IGNORE).all()
    assert task.vocab[targets[-3]] == value
    assert (targets[-2:] == IGNORE).all()


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("length", [6, 24, 100])
def test_answers_are_nearly_uniform(options: dict[str, Any], length: int) -> None:
    task = make_task("programs", **options)
    batch = task.sample(np.random.default_rng(0), np.full(4000, length))
    zero = task.vocab.index("0")
    shares = np.bincount(batch.targets[:, -1] - zero, minlength=task.modulus) / 4000
    assert len(shares) == task.modulus
    assert abs(shares - 1 / task.modulus).max() < 0.04


def test_every_form_occurs() -> None:
    task = make_task("programs")
    tokens = task.sample(np.random.default_rng(0), np.full(500, 100)).tokens
    statements = [s for row in tokens for s in text_of(task, row).split(" ; ")[:-1]]
    sizes = np.bincount([len(s.split()) for s in statements])
    assert np.flatnonzero(sizes).tolist() == [3, 4, 5, 6, 8, 9, 10, 11]
    guarded = sum(s.startswith("if") for s in statements) / len(statements)
    assert 0.27 < guarded < 0.36  # long statements fit a little less often
    assert 0.45 < np.mean([" + " in s for s in statements if len(s.split()) in (5, 10)]) < 0.55
    for i in (0, 2, 4):  # all variables are assigned, all terms are read
        words = {s.split()[i] for s in statements if len(s.split()) == 5}
        assert words == set("abcd") if i == 0 else words == set("abcd01234")


def test_conditionals_can_be_left_out() -> None:
    task = make_task("programs", conditionals=False)
    tokens = task.sample(np.random.default_rng(0), np.full(200, 60)).tokens
    assert task.vocab.index("if") not in tokens


def test_terms_read_what_was_assigned() -> None:
    task = make_task("programs")
    tokens = task.sample(np.random.default_rng(0), np.full(300, 80)).tokens
    for row in tokens:
        *statements, question = text_of(task, row).split(" ; ")
        assigned: set[str] = set()
        for statement in statements:
            guard, _, body = statement.rpartition(" : ")
            variable, terms = body.split(" = ")
            read = {word for word in [*terms.split(), guard[-1:]] if word.isalpha()}
            assert read <= assigned
            words = terms.split()
            assert len(words) < 3 or words[-3] != words[-1] or words[-1].isdigit()
            assigned |= set() if guard else {variable}
        assert not assigned or question[0] in assigned


def test_vocabulary() -> None:
    task = make_task("programs", variables=2, modulus=3)
    assert task.vocab == ("PAD", *"ab", *"012", "=", "+", "-", "if", "==", ":", ";", "?")
    assert task.chance == 1 / 3


def test_lengths_that_will_not_do() -> None:
    with pytest.raises(UserError, match=r"the length of programs must be .*at least 6; got 5"):
        make_task("programs").sample(np.random.default_rng(0), np.array([8, 5]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variables": 0}, r"variables must lie in 1\.\.26; got 0"),
        ({"variables": 27}, r"variables must lie in 1\.\.26; got 27"),
        ({"modulus": 1}, "modulus must lie in 2..*; got 1"),
        ({"conditionals": None}, "conditionals must be true or false; got None"),
        ({"loops": 3}, "unknown key 'loops' in task"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_that_will_not_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task("programs", **options)
