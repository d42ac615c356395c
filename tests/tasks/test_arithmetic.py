"""Modular arithmetic, cycle navigation and even pairs: values, grammars and distributions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.tasks import IGNORE, FiniteDataset, Stream, Task, make_task
from tests.tasks.formal_reference import pairs
from tests.tasks.test_sampling import chi_square

MODULI = st.sampled_from([2, 3, 5, 7, 12, 97])
LENGTHS = np.array([9, 3, 17, 4, 12, 40, 5, 100, 6, 7, 8])


def spelled(task: Task, row: list[int]) -> str:
    return "".join(task.vocab[token] for token in row if token != task.pad)


def operands(text: str) -> tuple[str, str, str] | None:
    """A bracketed expression of the grammar in three parts; None for d, -d, (d) and (-d)."""
    if text.removeprefix("(").removesuffix(")").removeprefix("-").isdigit():
        assert text.startswith("(") == text.endswith(")")
        return None
    assert text[0] + text[-1] == "()"
    depth, due = 0, True
    for i, symbol in enumerate(text[1:-1], 1):
        if depth == 0 and symbol in "+-*" and not due:
            return text[1:i], symbol, text[i + 1 : -1]
        depth += {"(": 1, ")": -1}.get(symbol, 0)
        due = symbol in "(+-*"
    raise AssertionError(text)


def check_grammar(text: str) -> None:
    parts = operands(text)
    if parts is not None:
        check_grammar(parts[0])
        check_grammar(parts[2])


# --- without brackets


@given(st.data(), MODULI)
def test_flat_values(data: st.DataObject, m: int) -> None:
    task = make_task("modular_arithmetic", modulus=m, supervision="dense")
    digit, operator = st.integers(0, m - 1), st.integers(0, 2)
    first, rest = data.draw(digit), data.draw(st.lists(st.tuples(operator, digit), max_size=30))
    row, text = [5 + first], str(first)
    expected = [5 + first % m]
    for op, d in rest:
        row += [1 + op, 5 + d]
        text += "+-*"[op] + str(d)
        expected += [IGNORE, 5 + eval(text) % m]
    row += [4, 0, 0]
    expected += [expected[-1], IGNORE, IGNORE]
    assert task.solve(np.array([row])).tolist() == [expected]
    last = make_task("modular_arithmetic", modulus=m).solve(np.array([row]))
    assert last.tolist() == [[IGNORE] * (len(row) - 3) + expected[-3:]]


@pytest.mark.parametrize("m", [2, 5, 11])
@pytest.mark.parametrize("supervision", ["last", "dense"])
def test_flat_samples(m: int, supervision: str) -> None:
    task = make_task("modular_arithmetic", modulus=m, supervision=supervision)
    tokens, targets, _ = task.sample(np.random.default_rng(0), np.tile(LENGTHS, 20))
    for row, answers, length in zip(tokens.tolist(), targets, np.tile(LENGTHS, 20), strict=True):
        text = spelled(task, row)
        assert text.endswith("=")
        assert len(row) - row.count(0) == task.input_size(length)
        at = len(row) - row.count(0) - 1
        assert answers[at] == 5 + eval(text[:-1]) % m
        if supervision == "last":
            assert (answers != IGNORE).sum() == 1


@pytest.mark.parametrize(
    ("length", "size"), [(3, 2), (4, 2), (5, 4), (6, 4), (39, 38), (40, 38), (255, 254), (256, 254)]
)
def test_the_size_of_flat_arithmetic(length: int, size: int) -> None:
    task = make_task("modular_arithmetic")
    assert task.input_size(length) == size
    batch = task.sample(np.random.default_rng(0), np.full(3, length))
    assert batch.tokens.shape == (3, size)
    assert (batch.tokens[:, -1] == 4).all()


def test_flat_sizes_are_those_of_the_authors() -> None:
    tokens = Stream(make_task("modular_arithmetic"), "train", 0, 19_000, 3, 40).batch(0).tokens
    sizes = 1 + (tokens != 0).sum(1)
    counts = np.bincount(sizes, minlength=41)
    assert np.flatnonzero(counts).tolist() == list(range(3, 40, 2))
    assert chi_square(counts[3::2]) < 3


def test_flat_draws_are_uniform() -> None:
    tokens, targets, _ = make_task("modular_arithmetic").sample(
        np.random.default_rng(0), np.full(4000, 40)
    )
    assert chi_square(np.bincount(tokens[:, ::2].ravel())[5:]) < 4
    assert chi_square(np.bincount(tokens[:, 1:-1:2].ravel())[1:]) < 5
    assert set(tokens[:, 1:-1:2].ravel()) == {1, 2, 3}
    answers = np.bincount(targets[:, -1])[5:]
    assert abs(answers / 4000 - 0.2).max() < 0.04


def test_precedence() -> None:
    task = make_task("modular_arithmetic", supervision="dense")
    # 2 - 3 * 4 * 2 + 1 =
    row = [7, 2, 8, 3, 9, 3, 7, 1, 6, 4]
    values = [2, None, -1, None, -10, None, -22, None, -21, -21]
    expected = [IGNORE if v is None else 5 + v % 5 for v in values]
    assert task.solve(np.array([row])).tolist() == [expected]


def test_long_products_stay_exact() -> None:
    task = make_task("modular_arithmetic", modulus=97)
    row = [5 + 96 - i % 7 if i % 2 == 0 else 3 for i in range(801)] + [4]
    expected = eval(spelled(task, row)[:-1]) % 97
    assert task.solve(np.array([row]))[0, -1] == 5 + expected


# --- with brackets


def expressions(m: int) -> st.SearchStrategy[str]:
    digit = st.integers(0, m - 1).map(str)
    leaf = st.tuples(st.sampled_from(["{}", "-{}", "({})", "(-{})"]), digit)
    leaves = leaf.map(lambda pair: pair[0].format(pair[1]))
    return st.recursive(
        leaves,
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
            lambda parts: "({}{}{})".format(*parts)
        ),
        max_leaves=40,
    )


def tokenised(text: str, m: int) -> list[int]:
    for symbol in "+-*()":
        text = text.replace(symbol, f" {symbol} ")
    return [m + "+-*()".index(s) if s in "+-*()" else int(s) for s in text.split()]


@given(st.data(), MODULI)
def test_bracket_values(data: st.DataObject, m: int) -> None:
    task = make_task("modular_arithmetic_brackets", modulus=m)
    texts = data.draw(st.lists(expressions(m), min_size=1, max_size=4))
    rows = [[*tokenised(text, m), m + 5] for text in texts]
    width = max(map(len, rows)) + data.draw(st.integers(0, 2))
    tokens = np.array([row + [m + 6] * (width - len(row)) for row in rows])
    expected = np.full_like(tokens, IGNORE)
    for i, text in enumerate(texts):
        expected[i, len(rows[i]) - 1] = eval(text) % m
    np.testing.assert_array_equal(task.solve(tokens), expected)


@pytest.mark.parametrize("m", [2, 5, 11])
@pytest.mark.parametrize("mult", [False, True])
def test_bracket_samples(m: int, mult: bool) -> None:
    task = make_task("modular_arithmetic_brackets", modulus=m, mult=mult)
    lengths = np.tile([1, 2, *LENGTHS, 150], 20)
    tokens, targets, returned = task.sample(np.random.default_rng(0), lengths)
    np.testing.assert_array_equal(returned, lengths)
    np.testing.assert_array_equal(targets, task.solve(tokens))
    used = set()
    for row, answers, length in zip(tokens.tolist(), targets.tolist(), lengths, strict=True):
        size = max(length, 5) - 2
        assert row[size - 1] == m + 5
        assert row[size:] == [m + 6] * (len(row) - size)
        text = spelled(task, row[: size - 1])
        check_grammar(text)
        used |= set(text) & set("+-*")
        assert answers[size - 1] == eval(text) % m
        assert sum(answer != IGNORE for answer in answers) == 1
    assert used == set("+-*" if mult else "+-")


@pytest.mark.parametrize(
    ("length", "kinds"), [(1, 5), (4, 5), (5, 5), (6, 5), (7, 5), (8, 75), (9, 150)]
)
def test_the_least_expressions(length: int, kinds: int) -> None:
    task = make_task("modular_arithmetic_brackets")
    tokens = task.sample(np.random.default_rng(0), np.full(4000, length)).tokens
    assert tokens.shape == (4000, max(length, 5) - 2)
    counts = Counter(spelled(task, row) for row in tokens.tolist())
    assert len(counts) == kinds
    patterns = {1: "-d=", 4: "-d=", 5: "-d=", 6: "(d)=", 7: "(-d)="}
    if length in patterns:
        assert set(counts) == {patterns[length].replace("d", str(d)) for d in range(5)}
        assert chi_square(np.array(list(counts.values()))) < 4


@pytest.mark.parametrize("size", [9, 24, 60])
def test_the_left_operand_is_uniform(size: int) -> None:
    task = make_task("modular_arithmetic_brackets")
    tokens = task.sample(np.random.default_rng(0), np.full(4000, size + 3)).tokens
    lefts, operators = Counter(), Counter()
    for row in tokens.tolist():
        parts = operands(spelled(task, row)[:-1])
        assert parts is not None
        lefts[len(parts[0])] += 1
        operators[parts[1]] += 1
    assert sorted(lefts) == list(range(1, size - 3))
    assert chi_square(np.array(list(lefts.values()))) < 3
    assert chi_square(np.array(list(operators.values()))) < 5


@pytest.mark.parametrize(
    ("mult", "low", "high", "zeros"),
    [(True, 40, 256, 0.302), (True, 3, 40, 0.27), (False, 40, 256, 0.2)],
)
def test_the_share_of_answer_0(mult: bool, low: int, high: int, zeros: float) -> None:
    task = make_task("modular_arithmetic_brackets", mult=mult)
    targets = Stream(task, "test", 0, 10_000, low, high).batch(0).targets
    answers = np.bincount(targets[targets != IGNORE], minlength=5) / 10_000
    assert abs(answers[0] - zeros) < 0.025  # five standard deviations
    assert abs(answers[1:] - (1 - zeros) / 4).max() < 0.03


def test_deep_brackets() -> None:
    task = make_task("modular_arithmetic_brackets")
    depth = 60  # ((((1+2)*3)...
    text = "(" * depth + "1" + "".join(f"{'+-*'[i % 3]}{i % 5})" for i in range(depth))
    mirrored = "".join(f"({i % 5}{'+-*'[i % 3]}" for i in range(depth)) + "-3" + ")" * depth
    for expression in (text, mirrored):
        row = [*tokenised(expression, 5), 10]
        assert task.solve(np.array([row]))[0, -1] == eval(expression) % 5


def test_a_finite_set_of_expressions() -> None:
    data = FiniteDataset(make_task("modular_arithmetic_brackets"), "train", 0, 50, 8, batch_size=10)
    assert len({tuple(row) for row in data.tokens.tolist()}) == 50
    assert (data.batch(0).targets[:, -1] != IGNORE).all()


# --- cycles and pairs


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=40),
    st.integers(2, 9),
    st.sampled_from(["last", "dense"]),
)
def test_cycle_navigation(row: list[int], cycle_size: int, supervision: str) -> None:
    task = make_task("cycle_navigation", cycle_size=cycle_size, supervision=supervision)
    position, expected = 0, []
    for token in row:
        position = (position + [0, 1, -1][token - 1]) % cycle_size
        expected.append(4 + position)
    if supervision == "last":
        expected[:-1] = [IGNORE] * (len(row) - 1)
    assert task.solve(np.array([[*row, 0]])).tolist() == [[*expected, IGNORE]]


@given(st.lists(st.integers(1, 2), min_size=1, max_size=40), st.sampled_from(["last", "dense"]))
def test_even_pairs(row: list[int], supervision: str) -> None:
    task = make_task("even_pairs", supervision=supervision)
    expected = [1 + pairs(row[: t + 1]) for t in range(len(row))]
    if supervision == "last":
        expected[:-1] = [IGNORE] * (len(row) - 1)
    assert task.solve(np.array([[*row, 0]])).tolist() == [[*expected, IGNORE]]


@pytest.mark.parametrize(("name", "symbols"), [("cycle_navigation", 3), ("even_pairs", 2)])
def test_steps_are_uniform(name: str, symbols: int) -> None:
    task = make_task(name)
    tokens, targets, _ = task.sample(np.random.default_rng(0), np.full(4000, 20))
    assert tokens.shape == (4000, 19)  # length counts the answer
    counts = np.bincount(tokens.ravel())[1:]
    assert len(counts) == symbols
    assert chi_square(counts) < 5
    answers = np.bincount(targets[:, -1])[4 if symbols == 3 else 1 :]
    assert len(answers) == round(1 / task.chance)
    assert chi_square(answers) < 5


# --- what is what, and mistakes


def test_vocabularies() -> None:
    tasks = {
        "modular_arithmetic": "PAD + - * = 0 1 2 3 4",
        "modular_arithmetic_brackets": "0 1 2 3 4 + - * ( ) = PAD",
        "cycle_navigation": "PAD stay forward back 0 1 2 3 4",
        "even_pairs": "PAD a b",
    }
    for name, vocab in tasks.items():
        assert " ".join(make_task(name).vocab) == vocab
    assert len(make_task("modular_arithmetic", modulus=7).vocab) == 12
    assert len(make_task("modular_arithmetic_brackets", modulus=7).vocab) == 14
    assert len(make_task("cycle_navigation", cycle_size=6).vocab) == 10


def test_chance() -> None:
    assert make_task("modular_arithmetic", modulus=7).chance == 1 / 7
    assert make_task("modular_arithmetic_brackets").chance == 1 / 5
    assert make_task("cycle_navigation", cycle_size=6).chance == 1 / 6
    assert make_task("even_pairs").chance == 1 / 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("modular_arithmetic", {"modulus": 1}, "modulus must lie in 2..*; got 1"),
        ("modular_arithmetic", {"modulus": 2.5}, "modulus must be a whole number; got 2.5"),
        ("modular_arithmetic", {"supervision": "all"}, "supervision must be one of last, dense"),
        ("modular_arithmetic", {"mult": False}, "unknown key 'mult' in task"),
        ("modular_arithmetic_brackets", {"modulus": 0}, "modulus must lie in 2..*; got 0"),
        ("modular_arithmetic_brackets", {"mult": 1}, "mult must be true or false; got 1"),
        ("modular_arithmetic_brackets", {"supervision": "dense"}, "unknown key 'supervision'"),
        ("cycle_navigation", {"cycle_size": 1}, "cycle_size must lie in 2..*; got 1"),
        ("cycle_navigation", {"supervision": "all"}, "supervision must be one of last, dense"),
        ("even_pairs", {"modulus": 2}, "unknown key 'modulus' in task"),
    ],
    ids=str,
)
def test_options_that_will_not_do(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(name, **options)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("modular_arithmetic", 3),
        ("modular_arithmetic_brackets", 1),
        ("cycle_navigation", 2),
        ("even_pairs", 2),
    ],
)
def test_the_least_length(name: str, least: int) -> None:
    task = make_task(name)
    batch = task.sample(np.random.default_rng(0), np.full(4, least))
    assert ((batch.targets != IGNORE).sum(1) == 1).all()
    for bad in (least - 1, -1):
        with pytest.raises(UserError, match=f"the length of {name} must be .*at least {least}"):
            task.sample(np.random.default_rng(0), np.array([least + 5, bad]))


@pytest.mark.parametrize("text", ["(1+2", "1+2)", ")1+2("])
def test_brackets_that_do_not_match(text: str) -> None:
    with pytest.raises(UserError, match="brackets that do not match"):
        make_task("modular_arithmetic_brackets").solve(np.array([[*tokenised(text, 5), 10]]))


@pytest.mark.parametrize(
    "name", ["modular_arithmetic", "modular_arithmetic_brackets", "cycle_navigation", "even_pairs"]
)
def test_padding_and_empty_batches(name: str) -> None:
    task = make_task(name)
    assert (task.solve(np.full((2, 5), task.pad)) == IGNORE).all()
    for shape in [(2, 0), (0, 3), (0, 0)]:
        assert task.solve(np.empty(shape, dtype=np.int64)).shape == shape
