"""Associative recall, copying and induction, against dictionaries and slices."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.tasks import IGNORE, Task, make_task
from statetrack.tasks.recall import distinct

NOTHING = "-"


def recalled(row: list[str], pairs: int) -> list[str]:
    known = {row[2 * i]: row[2 * i + 1] for i in range(pairs)}
    return [NOTHING] * (2 * pairs) + [known.get(word, NOTHING) for word in row[2 * pairs :]]


def copied(row: list[str]) -> list[str]:
    end = row.index("SEP")
    return [NOTHING] * (end + 1) + row[:end]


def induced(row: list[str]) -> list[str]:
    return [NOTHING] * (len(row) - 1) + [row[row.index("SPECIAL") + 1]]


def expected(task: Task, row: list[str]) -> list[str]:
    if task.name == "mqar":
        return recalled(row, task.pairs)
    return copied(row) if task.name == "copying" else induced(row)


def check(task: Task, tokens: np.ndarray, targets: np.ndarray) -> None:
    for row, found in zip(tokens, targets, strict=True):
        words = [task.vocab[token] for token in row if token != task.pad]
        texts = [NOTHING if target == IGNORE else task.vocab[target] for target in found]
        assert texts == expected(task, words) + [NOTHING] * (len(row) - len(words))


def solved(task: Task, rows: list[list[str]], more: int) -> None:
    tokens = np.zeros((len(rows), max(map(len, rows)) + more), dtype=np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = [task.vocab.index(word) for word in row]
    check(task, tokens, task.solve(tokens))


@given(st.data(), st.integers(1, 5), st.integers(0, 3), st.integers(2, 6), st.integers(1, 3))
def test_solve_mqar(data: st.DataObject, pairs: int, more: int, values: int, fillers: int) -> None:
    options = {"pairs": pairs, "keys": pairs + more, "values": values, "fillers": fillers}
    task = make_task("mqar", **options)
    keys = st.permutations([f"k{i}" for i in range(pairs + more)])
    value = st.sampled_from([f"v{i}" for i in range(values)])
    anything = st.sampled_from(task.vocab[1:])  # even keys that have no value, or asked for again
    rows = []
    for _ in range(data.draw(st.integers(1, 4))):
        given_keys = data.draw(keys)[:pairs]
        context = [word for key in given_keys for word in (key, data.draw(value))]
        rows.append(context + data.draw(st.lists(anything, max_size=12)))
    solved(task, rows, data.draw(st.integers(0, 2)))


@given(st.data(), st.integers(2, 6), st.integers(0, 2))
def test_solve_copying(data: st.DataObject, symbols: int, more: int) -> None:
    symbol = st.sampled_from([f"s{i}" for i in range(symbols)])
    strings = data.draw(st.lists(st.lists(symbol, max_size=10), min_size=1, max_size=4))
    rows = [[*string, "SEP", *["BLANK"] * len(string)] for string in strings]
    solved(make_task("copying", symbols=symbols), rows, more)


@given(st.data(), st.integers(2, 6), st.integers(0, 2))
def test_solve_induction(data: st.DataObject, symbols: int, more: int) -> None:
    symbol = st.sampled_from([f"s{i}" for i in range(symbols)])
    string = st.lists(symbol, max_size=10)
    parts = data.draw(st.lists(st.tuples(string, symbol, string), min_size=1, max_size=4))
    rows = [[*a, "SPECIAL", answer, *b, "SPECIAL"] for a, answer, b in parts]
    solved(make_task("induction", symbols=symbols), rows, more)


VARIANTS: dict[str, Task] = {
    "mqar": make_task("mqar"),
    "mqar, every key": make_task("mqar", pairs=5, keys=5, values=2, power_a=1.0),
    "mqar, one pair": make_task("mqar", pairs=1, keys=1, fillers=9),
    "copying": make_task("copying"),
    "copying, two symbols": make_task("copying", symbols=2),
    "induction": make_task("induction"),
    "induction, two symbols": make_task("induction", symbols=2),
}
each = pytest.mark.parametrize("task", VARIANTS.values(), ids=VARIANTS)


@each
@pytest.mark.parametrize("more", [(0,), (1,), (0, 1, 2, 50, 7)], ids=str)
def test_samples(task: Task, more: tuple[int, ...]) -> None:
    lengths = task.min_length + np.repeat(more, 20)
    batch = task.sample(np.random.default_rng(0), lengths)
    check(task, batch.tokens, batch.targets)
    sizes = [task.input_size(int(length)) for length in lengths]
    np.testing.assert_array_equal((batch.tokens != task.pad).sum(1), sizes)
    questions = {"mqar": getattr(task, "pairs", 0), "copying": lengths, "induction": 1}
    np.testing.assert_array_equal((batch.targets != IGNORE).sum(1), questions[task.name])


@each
def test_answers_are_uniform(task: Task) -> None:
    batch = task.sample(np.random.default_rng(0), np.full(8000, 30))
    targets = batch.targets[batch.targets != IGNORE]
    counts = np.unique(targets, return_counts=True)[1]
    assert len(counts) == round(1 / task.chance)
    mean = counts.mean()
    assert abs(counts - mean).max() < 5 * mean**0.5


def test_each_key_is_asked_for_once() -> None:
    task = make_task("mqar")
    tokens = task.sample(np.random.default_rng(0), np.array([24, 60, 99] * 50)).tokens
    for row in tokens:
        keys = row[:16:2].tolist()
        assert len(set(keys)) == 8
        assert sorted(token for token in row[16:] if 1 <= token <= 64) == sorted(keys)


@pytest.mark.parametrize("power_a", [0.01, 0.5, 1.0])
def test_the_places_of_queries(power_a: float) -> None:
    task = make_task("mqar", pairs=1, power_a=power_a)
    targets = task.sample(np.random.default_rng(0), np.full(20_000, 12)).targets
    shares = (targets[:, 2:] != IGNORE).mean(0)
    weights = np.arange(1, 11) ** (power_a - 1)
    assert abs(shares - weights / weights.sum()).max() < 0.02


def test_which_pair_is_asked_for_does_not_depend_on_the_place() -> None:
    task = make_task("mqar", pairs=3)
    batch = task.sample(np.random.default_rng(0), np.full(20_000, 20))
    asked = np.argmax(batch.targets[:, 6:] != IGNORE, axis=1) + 6
    first = batch.tokens[np.arange(20_000), asked]
    shares = (batch.tokens[:, :6:2] == first[:, None]).mean(0)
    assert abs(shares - 1 / 3).max() < 0.02


def test_distinct() -> None:
    drawn = distinct(np.random.default_rng(0), 24_000, 4, 3)
    counts = dict.fromkeys(permutations(range(4), 3), 0)
    for row in drawn.tolist():
        counts[tuple(row)] += 1
    assert all(abs(count - 1000) < 160 for count in counts.values())  # five standard deviations


def test_the_place_of_the_special_token_is_uniform() -> None:
    tokens = make_task("induction").sample(np.random.default_rng(0), np.full(20_000, 12)).tokens
    shares = (tokens == 1).mean(0)
    assert abs(shares[:10] - 0.1).max() < 0.012
    assert shares[10:].tolist() == [0, 1]


def test_vocabularies() -> None:
    task = make_task("mqar", pairs=2, keys=2, values=3, fillers=1)
    assert task.vocab == ("PAD", "k0", "k1", "v0", "v1", "v2", "f0")
    assert (task.chance, task.min_length) == (1 / 3, 6)
    task = make_task("copying", symbols=2)
    assert task.vocab == ("PAD", "SEP", "BLANK", "s0", "s1")
    assert (task.chance, task.min_length, task.input_size(3)) == (1 / 2, 1, 7)
    task = make_task("induction", symbols=2)
    assert task.vocab == ("PAD", "SPECIAL", "s0", "s1")
    assert (task.chance, task.min_length, task.input_size(9)) == (1 / 2, 3, 9)


@each
def test_metrics(task: Task) -> None:
    assert task.metric == ("answer" if task.name == "induction" else "token")


@each
def test_too_short(task: Task) -> None:
    least = task.min_length
    message = f"the length of {task.name} must be .*at least {least}; got {least - 1}"
    with pytest.raises(UserError, match=message):
        task.sample(np.random.default_rng(0), np.array([least, least - 1]))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mqar", {"pairs": 0}, "pairs must lie in 1..*; got 0"),
        ("mqar", {"pairs": 65}, "65 pairs need as many keys; got 64"),
        ("mqar", {"values": 1}, "values must lie in 2..*; got 1"),
        ("mqar", {"fillers": 0}, "fillers must lie in 1..*; got 0"),
        ("mqar", {"power_a": 0.0}, "power_a must be above 0 and at most 1; got 0.0"),
        ("mqar", {"power_a": 1.5}, "power_a must be above 0 and at most 1; got 1.5"),
        ("mqar", {"power_a": float("nan")}, "power_a must be above 0 and at most 1; got nan"),
        ("copying", {"symbols": 1}, "symbols must lie in 2..*; got 1"),
        ("induction", {"symbols": 0}, "symbols must lie in 2..*; got 0"),
        ("induction", {"pairs": 2}, "unknown key 'pairs' in task"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_that_will_not_do(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(name, **options)
