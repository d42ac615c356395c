"""Tasks scored on each of their positions, accuracy by position, horizons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from statetrack.tasks import IGNORE, Task, make_task
from statetrack.tasks.base import Ints
from statetrack.training import Evaluation, evaluate
from statetrack.training.curves import horizon
from statetrack.training.evaluate import bootstrap, wilson
from tests.training.fakes import Constant, perfect

REVERSE = make_task("chomsky/reverse_string")
ADDITION = make_task("chomsky/binary_addition")
BOTH = pytest.mark.parametrize("task", [REVERSE, ADDITION], ids=["reverse", "addition"])
TERMINATOR = 2

Where = Callable[[Ints, Ints], NDArray[np.bool_]]


class Tape(nn.Module):
    """Reads whole tapes; right on the outputs where `knows(targets, ranks)` says so.

    The rank of an output is its number on the tape, from 0. Elsewhere it answers wrongly.
    """

    def __init__(self, task: Task, knows: Where) -> None:
        super().__init__()
        self.task, self.knows = task, knows
        self.targets: list[list[int]] = []  # the outputs of each sequence

    def forward(self, tokens: Tensor, state: None = None) -> tuple[Tensor, None]:
        right = self.task.solve(tokens.numpy())
        asked = right != IGNORE
        self.targets += [row[row != IGNORE].tolist() for row in right]
        ranks = np.cumsum(asked, axis=1) - 1
        said = np.where(asked & self.knows(right, ranks), right, (right + 1) % 3)
        return F.one_hot(torch.from_numpy(said), len(self.task.vocab)).float(), None


def result(task: Task, knows: Where, *args: Any, **options: Any) -> tuple[Evaluation, list[Any]]:
    model = Tape(task, knows)
    return evaluate(model, task, *args, **options), model.targets  # type: ignore[arg-type]


def counted(row: list[int], task: Task) -> list[int]:
    """The outputs that count: up to the terminator, where there is one."""
    return row[: row.index(TERMINATOR) + 1] if task is ADDITION else row


@BOTH
@pytest.mark.parametrize("lengths", [9, (1, 12)], ids=["one length", "a range"])
def test_all_right(task: Task, lengths: Any) -> None:
    got, _ = result(task, lambda targets, ranks: ranks >= 0, lengths, samples=40)
    assert (got.metric, got.score, got.low, got.high, got.scaled) == ("token", 1, 1, 1, 1)
    assert got.token_accuracy == got.answer_accuracy == got.sequence_accuracy == 1


@BOTH
def test_all_wrong(task: Task) -> None:
    got, _ = result(task, lambda targets, ranks: ranks < 0, (1, 12), samples=40)
    assert (got.score, got.low, got.high) == (0, 0, 0)
    assert got.scaled == pytest.approx(-task.chance / (1 - task.chance))
    assert got.token_accuracy == got.answer_accuracy == got.sequence_accuracy == 0


@BOTH
def test_some_right(task: Task) -> None:
    """Right on every output but the second: each position counts once, short rows less."""
    got, rows = result(task, lambda targets, ranks: ranks != 1, (1, 12), samples=60)
    sizes = np.array([len(counted(row, task)) for row in rows])
    assert len(sizes) == 60
    right = sizes - (sizes > 1)
    assert got.score == got.token_accuracy == pytest.approx(right.sum() / sizes.sum())
    assert got.score != pytest.approx((right / sizes).mean())  # no mean over sequences
    assert got.sequence_accuracy == pytest.approx((sizes == 1).mean())
    assert got.answer_accuracy == pytest.approx((sizes != 2).mean())
    assert got.low < got.score < got.high
    assert got.scaled == pytest.approx((got.score - task.chance) / (1 - task.chance))


def test_what_follows_the_terminator_does_not_count() -> None:
    def before_its_end(targets: Ints, ranks: Ints) -> NDArray[np.bool_]:
        ended = np.cumsum(targets == TERMINATOR, axis=1)
        return (ended == 0) | (targets == TERMINATOR)

    got, rows = result(ADDITION, before_its_end, (3, 12), samples=40)
    assert (got.score, got.low, got.high, got.answer_accuracy) == (1, 1, 1, 1)
    assert any(row[-1] != TERMINATOR for row in rows)  # something was wrong, and did not count


def test_wrong_on_the_terminator_alone() -> None:
    got, rows = result(ADDITION, lambda targets, ranks: targets != TERMINATOR, 8, samples=40)
    total = sum(len(counted(row, ADDITION)) for row in rows)
    assert got.score == pytest.approx(1 - 40 / total)
    assert (got.answer_accuracy, got.sequence_accuracy) == (0, 0)


# -- intervals ------------------------------------------------------------------------------------


def test_bootstrap_goes_by_sequences() -> None:
    """20 sequences of 100 tokens, half of them all right: as uncertain as 20 coins."""
    right, asked = np.repeat([0, 100], 10), np.full(20, 100)
    low, high = bootstrap(right, asked)
    assert low <= 0.35
    assert high >= 0.65
    spread_out = bootstrap(np.full(20, 50), asked)
    assert spread_out == (0.5, 0.5)


def test_bootstrap_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(100):
        asked = rng.integers(5, 15, 60)
        low, high = bootstrap(rng.binomial(asked, rng.beta(2, 2, 60)), asked)
        hits += low <= 0.5 <= high
    assert 86 <= hits <= 100


def test_bootstrap_is_repeatable_and_takes_one_sequence() -> None:
    right, asked = np.arange(10), np.full(10, 9)
    assert bootstrap(right, asked) == bootstrap(right, asked)
    assert bootstrap(np.array([3]), np.array([4])) == (0.75, 0.75)


# -- the most frequent answer ---------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [9, (3, 12)], ids=["one length", "a range"])
@BOTH
def test_majority_is_what_the_task_says(task: Task, lengths: Any) -> None:
    got, _ = result(task, lambda targets, ranks: ranks >= 0, lengths, samples=5)
    wanted = task.majority(*np.atleast_1d(lengths).tolist())
    assert got.majority == got.to_json()["majority"] == wanted > 0


@pytest.mark.parametrize("name", ["parity", "tomita1", "modular_arithmetic"])
def test_majority_is_the_score_of_a_constant_model(name: str) -> None:
    """Of the best of the models that always say the same, but for the noise of two samples."""
    task = make_task(name)

    class Same(Constant):
        def forward(self, tokens: Tensor, state: Any = None) -> Any:
            said = torch.full_like(tokens, self.token)
            return F.one_hot(said, len(self.task.vocab)).float(), tokens

    options = range(len(task.vocab))
    each = [evaluate(Same(task, n), task, (5, 9), samples=1024) for n in options]  # type: ignore[arg-type]
    assert each[0].majority == pytest.approx(max(e.score for e in each), abs=0.05)


# -- by position ----------------------------------------------------------------------------------


@BOTH
def test_accuracy_by_position(task: Task) -> None:
    """Wrong at the second output, and at the first of every other sequence."""

    def knows(targets: Ints, ranks: Ints) -> NDArray[np.bool_]:
        return (ranks > 1) | ((ranks == 0) & (np.arange(len(ranks)) % 2 == 0)[:, None])

    got, rows = result(task, knows, (3, 12), samples=60)
    sizes = np.array([len(counted(row, task)) for row in rows])
    asked = [int((sizes > n).sum()) for n in range(sizes.max())]
    assert got.position_accuracy == (0.5, 0.0, *[1.0] * (sizes.max() - 2))
    for n, right in enumerate([30, 0, *asked[2:]]):
        interval = (got.position_low[n], got.position_high[n])
        assert interval == pytest.approx(wilson(right, asked[n]))
    data = got.to_json()
    assert data["position_accuracy"] == got.position_accuracy
    assert set(data) - set(got.to_json(positions=False)) == {
        "position_accuracy", "position_low", "position_high",
    }  # fmt: skip


def test_one_answer_is_one_position() -> None:
    task = make_task("parity")
    got = evaluate(perfect(task), task, (5, 9), samples=20)  # type: ignore[arg-type]
    assert got.position_accuracy == (1.0,)


# -- horizon --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        pytest.param([0.5, 0.5, 0.5, 0.5], None, id="never"),
        pytest.param([0.9899, 1, 1, 1], None, id="not at first"),
        pytest.param([1, 1, 1, 1], 9, id="always"),
        pytest.param([0.99, 0.99, 0.99, 0.99], 9, id="just enough"),
        pytest.param([1, 0.99, 0.98, 0.5], 3, id="in between"),
        pytest.param([1, 0.5, 1, 1], 2, id="a dip"),
        pytest.param([1, 1, 0.98, 1], 3, id="a late dip"),
        pytest.param([1, 1, 1, 0], 5, id="all but the last"),
    ],
)
def test_horizon(accuracy: list[float], expected: int | None) -> None:
    got = horizon(np.array([2, 3, 5, 9]), np.array(accuracy))
    assert got == expected
    assert got is None or type(got) is int
