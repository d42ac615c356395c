"""Accuracy against length, from the prefixes of long sequences."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.tasks import FAMILIES, Task, make_task
from statetrack.training import curve, evaluate
from statetrack.training.evaluate import wilson
from tests.training.fakes import Constant, Fake, at_once, perfect, right_up_to
from tests.training.small import small_config

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


class Solver(nn.Module):
    """Says at every position what is asked there."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def forward(self, tokens: Tensor, state: None = None) -> tuple[Tensor, None]:
        answers = getattr(self.task, "dense_targets", self.task.solve)
        right = np.maximum(0, answers(tokens.numpy()))
        return F.one_hot(torch.from_numpy(right), len(self.task.vocab)).float(), None


NAMES = [name for family in FAMILIES for name in family.examples]


@pytest.mark.parametrize("name", NAMES)
def test_every_task_has_a_true_curve(name: str) -> None:
    """A model that is always right is right at every length."""
    task = make_task(name)
    longest = max(12, 2 * task.min_length)
    got = measured(Solver(task), task, longest, samples=8)  # type: ignore[arg-type]
    assert got.lengths[-1] == longest
    assert got.accuracy.tolist() == [1.0] * len(got.lengths)
    assert got.sequence_accuracy.tolist() == [1.0] * len(got.lengths)
    assert got.horizon == longest


def test_intervals_are_those_of_wilson() -> None:
    got = measured(Constant(PARITY, 1), PARITY, 12, samples=64)
    assert got.samples == 64
    assert len(set(got.accuracy.tolist())) > 2
    for accuracy, low, high in zip(got.accuracy, got.low, got.high, strict=True):
        assert (low, high) == pytest.approx(wilson(round(64 * accuracy), 64))
        assert low < accuracy < high


def test_intervals_at_the_ends() -> None:
    got = measured(right_up_to(PARITY, 5), PARITY, 9, samples=50)
    assert got.high[:4].tolist() == pytest.approx([1.0] * 4)
    assert got.low[4:].tolist() == pytest.approx([0.0] * 4)
    assert (got.low[:4] > 0.9).all()
    assert (got.high[4:] < 0.1).all()


@pytest.mark.parametrize(("known", "expected"), [(0, None), (1, None), (2, 2), (8, 8), (30, 20)])
def test_horizon(known: int, expected: int | None) -> None:
    """Lengths go from 2 to 20."""
    assert measured(right_up_to(PARITY, known), PARITY, 20, samples=10).horizon == expected


def test_a_dip_ends_the_horizon() -> None:
    model = Fake(WORDS, lambda positions: positions != 5)
    assert measured(model, WORDS, 9, samples=10).horizon == 4


def test_json() -> None:
    got = measured(right_up_to(WORDS, 4), WORDS, 9, samples=10)
    data = json.loads(json.dumps(got.to_json()))
    assert data["lengths"] == list(range(1, 10))
    assert (data["samples"], data["horizon"]) == (10, 4)
    assert data["metric"] == "answer"
    for name in ("accuracy", "low", "high", "scaled", "majority", "sequence_accuracy"):
        assert data[name] == getattr(got, name).tolist()
        assert len(data[name]) == 9


def test_what_lies_beside_a_curve_of_prefixes() -> None:
    """Of one answer at a time, although a word problem is scored on all of them."""
    got = measured(right_up_to(WORDS, 4), WORDS, 9, samples=10)
    assert got.scaled == pytest.approx([1] * 4 + [-1 / 5] * 5)  # of six elements
    assert got.majority.tolist() == WORDS.answer_majorities(9)[1:].tolist()  # type: ignore[attr-defined]
    assert got.majority == pytest.approx(1 / 6, abs=0.05)


def test_what_lies_beside_a_curve_of_samples() -> None:
    task = make_task("chomsky/reverse_string")
    got = measured(Solver(task), task, 12, samples=8)  # type: ignore[arg-type]
    assert got.metric == "token"
    assert got.scaled.tolist() == [1.0] * len(got.lengths)
    assert got.majority.tolist() == [task.majority(int(n)) for n in got.lengths]


@pytest.mark.parametrize("mixer", ["delta_net", "mamba"])
def test_long_sequences_in_segments(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held at once is bounded, and makes no difference."""
    torch.manual_seed(0)
    config = small_config("S3", mixer, allow_neg_eigval=True, model={"initializer_range": 1.0})
    model = SequenceModel(config.model)
    sizes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(tuple(args[0].shape)))
    whole = curve(model, WORDS, 5000, samples=2)
    assert sizes == [(2, 5001)]
    sizes.clear()
    at_once(1500, monkeypatch)
    parts = curve(model, WORDS, 5000, samples=2)
    assert max(b * t for b, t in sizes) <= 1500
    assert sum(t for _, t in sizes) in (5001, 2 * 5001)
    assert len(sizes) > 3
    assert 0 < whole.accuracy.mean() < 1
    assert parts.to_json() == whole.to_json()
