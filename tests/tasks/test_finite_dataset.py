"""Finite data sets: distinct sequences, gone through epoch by epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.tasks import FiniteDataset, make_task


def dataset(name: str = "S3", size: int = 60, length: int = 4, **options: Any) -> FiniteDataset:
    options = {"split": "train", "data_seed": 0, "batch_size": 10, **options}
    split, data_seed = options.pop("split"), options.pop("data_seed")
    return FiniteDataset(make_task(name), split, data_seed, size, length, **options)


def rows(tokens: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in tokens.tolist()]


def epoch(data: FiniteDataset, number: int) -> list[tuple[int, ...]]:
    steps = range(number * data.steps_per_epoch, (number + 1) * data.steps_per_epoch)
    return [row for step in steps for row in rows(data.batch(step).tokens)]


@pytest.mark.parametrize("name", ["parity", "S3", "S5_only_swaps", "A4_x_Z5"])
def test_sequences_are_distinct(name: str) -> None:
    data = dataset(name, size=500, length=11)
    assert data.tokens.shape == (500, data.task.input_size(11))
    assert len(set(rows(data.tokens))) == 500


def test_batches() -> None:
    data = dataset("S5", size=30, length=9)
    batch = data.batch(1)
    assert batch.tokens.shape == (10, 10)
    assert batch.tokens.dtype == batch.targets.dtype == np.int64
    np.testing.assert_array_equal(batch.targets, data.task.solve(batch.tokens))
    np.testing.assert_array_equal(batch.lengths, np.full(10, 9))


def test_an_epoch_visits_each_sequence_once() -> None:
    data = dataset()
    for number in range(3):
        visited = epoch(data, number)
        assert len(visited) == 60
        assert set(visited) == set(rows(data.tokens))


def test_a_partial_batch_is_dropped() -> None:
    data = dataset(size=25)
    assert data.steps_per_epoch == 2
    visited = [epoch(data, number) for number in range(20)]
    assert all(len(set(e)) == len(e) == 20 for e in visited)
    # but not the same sequences every time
    assert {row for e in visited for row in e} == set(rows(data.tokens))


def test_the_order_changes_from_epoch_to_epoch() -> None:
    data = dataset()
    orders = [epoch(data, number) for number in range(4)]
    assert len({tuple(order) for order in orders}) == 4


def test_the_order_seed_changes_the_order_and_nothing_else() -> None:
    first, second = dataset(order_seed=1), dataset(order_seed=2)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert epoch(first, 0) != epoch(second, 0)
    assert epoch(first, 0) == epoch(dataset(order_seed=1), 0)


def test_the_order_of_calls_does_not_matter() -> None:
    data, other = dataset(), dataset()
    expected = [rows(data.batch(step).tokens) for step in range(18)]
    for step in (17, 0, 6, 5, 12, 0, 17):
        assert rows(other.batch(step).tokens) == expected[step]


@pytest.mark.parametrize(
    "change", [{"data_seed": 1}, {"split": "validation"}, {"split": "test"}], ids=str
)
def test_other_seeds_and_splits_give_other_sequences(change: dict[str, Any]) -> None:
    assert set(rows(dataset("S5").tokens)).isdisjoint(rows(dataset("S5", **change).tokens))


@pytest.mark.parametrize("data_seed", range(4))
def test_nearly_all_sequences(data_seed: int) -> None:
    data = dataset("Z5", size=600, length=4, data_seed=data_seed)  # of 5^4 = 625
    assert len(set(rows(data.tokens))) == 600


@pytest.mark.parametrize("data_seed", range(4))
def test_all_sequences(data_seed: int) -> None:
    data = dataset("parity", size=8, length=4, batch_size=4, data_seed=data_seed)
    assert len(set(rows(data.tokens))) == 8


@pytest.mark.parametrize(
    ("name", "size", "length"), [("parity", 9, 4), ("Z5", 626, 4), ("parity", 10**4, 10)], ids=str
)
def test_more_sequences_than_exist(name: str, size: int, length: int) -> None:
    message = f"{name} has too few different sequences of length {length}: .* of {size}"
    with pytest.raises(UserError, match=message):
        dataset(name, size=size, length=length, batch_size=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 61}, "the batch size 61 exceeds the data set's 60 sequences"),
        ({"batch_size": 0}, "the batch size must be .*at least 1; got 0"),
        ({"size": 0}, "the number of sequences must be .*at least 1; got 0"),
        ({"length": 0}, "the length of S3 must be .*at least 1; got 0"),
        ({"split": "dev"}, "split must be one of train, validation, test; got 'dev'"),
        ({"data_seed": -1}, "data_seed must lie in .*; got -1"),
        ({"order_seed": -1}, "order_seed must .*; got -1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataset(**options).batch(0)
