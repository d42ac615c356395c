"""Accuracy against length, from the prefixes of long sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.tasks import Task, make_task
from statetrack.training import curve, evaluate
from tests.training.fakes import Constant, Fake, at_once, perfect, right_up_to

PARITY = make_task("parity")
WORDS = make_task("S3")
TASKS = [
    pytest.param(PARITY, 2, id="parity"),
    pytest.param(make_task("parity", supervision="dense"), 2, id="parity, dense"),
    pytest.param(WORDS, 1, id="S3"),
    pytest.param(make_task("S3", supervision="last"), 1, id="S3, last"),
]


def measured(model: Fake, task: Task, longest: int, **options: Any) -> Any:
    return curve(model, task, longest, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("task", "shortest"), TASKS)
def test_perfect(task: Task, shortest: int) -> None:
    got = measured(perfect(task), task, 20, samples=10)
    assert got.lengths.tolist() == list(range(shortest, 21))
    assert got.accuracy.tolist() == [1.0] * len(got.lengths)
    assert got.sequence_accuracy.tolist() == [1.0] * len(got.lengths)


@pytest.mark.parametrize(("task", "shortest"), TASKS)
def test_right_up_to_a_length(task: Task, shortest: int) -> None:
    got = measured(right_up_to(task, 8), task, 20, samples=10)
    expected = [float(n <= 8) for n in range(shortest, 21)]
    assert got.accuracy.tolist() == expected
    assert got.sequence_accuracy.tolist() == expected


def test_one_mistake_ends_the_sequence_accuracy() -> None:
    """Wrong at length 5 (of the word problem: position 5, after BOS) and right again after it."""
    model = Fake(WORDS, lambda positions: positions != 5)
    got = measured(model, WORDS, 9, samples=10)
    assert got.accuracy.tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    assert got.sequence_accuracy.tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0]


def test_constant() -> None:
    model = Constant(PARITY, 1)
    got = measured(model, PARITY, 12, samples=64)
    (tokens,) = model.read
    even = np.cumsum(tokens == 2, axis=1) % 2 == 0
    assert got.accuracy == pytest.approx(even.mean(0))
    so_far = [even[:, : n + 1].all(1).mean() for n in range(11)]
    assert got.sequence_accuracy == pytest.approx(so_far)


def test_it_agrees_with_evaluation_at_one_length() -> None:
    model = right_up_to(WORDS, 6)
    got = measured(model, WORDS, 10, samples=10)
    for length, accuracy in zip(got.lengths, got.sequence_accuracy, strict=True):
        assert evaluate(model, WORDS, int(length), samples=4).score == accuracy  # type: ignore[arg-type]


def test_large_samples_are_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(64, monkeypatch)
    model = right_up_to(PARITY, 5)
    got = measured(model, PARITY, 9, samples=50)
    assert [len(tokens) for tokens in model.read] == [8] * 6 + [2]
    assert got.accuracy.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_too_short() -> None:
    with pytest.raises(UserError, match="at least 2"):
        measured(perfect(PARITY), PARITY, 1)
