"""The learning rate."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from statetrack.models import SequenceModel
from statetrack.training import TrainingConfig, train
from statetrack.training.optim import learning_rate
from tests.training.small import small_config

COSINE = TrainingConfig(steps=100, lr=1e-2, min_lr=1e-4, warmup=0.1)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        pytest.param(0, 0.0, id="zero at first"),
        pytest.param(1, 1e-3, id="after one step of warm-up"),
        pytest.param(5, 5e-3, id="half of the warm-up"),
        pytest.param(10, 1e-2, id="peak"),
        pytest.param(55, (1e-2 + 1e-4) / 2, id="half of the cosine"),
        pytest.param(100, 1e-4, id="end"),
    ],
)
def test_warm_up_and_cosine(step: int, rate: float) -> None:
    assert learning_rate(COSINE, step) == pytest.approx(rate, rel=1e-12, abs=0)


def test_cosine_is_the_textbook_formula() -> None:
    for step in range(10, 101):
        share = (step - 10) / 90
        expected = 1e-4 + (1e-2 - 1e-4) * 0.5 * (1 + math.cos(math.pi * share))
        assert learning_rate(COSINE, step) == pytest.approx(expected, rel=1e-12)


def test_it_rises_then_falls() -> None:
    rates = [learning_rate(COSINE, step) for step in range(101)]
    assert all(a < b for a, b in pairwise(rates[:11]))
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_constant_after_the_warm_up() -> None:
    config = TrainingConfig(steps=100, lr=0.5, warmup=0.2, schedule="constant")
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[:20] == pytest.approx([0.5 * step / 20 for step in range(20)])
    assert rates[20:] == [0.5] * 80


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_without_warm_up_it_begins_at_the_peak(schedule: str) -> None:
    config = TrainingConfig(steps=10, lr=0.5, warmup=0.0, schedule=schedule)  # type: ignore[arg-type]
    assert learning_rate(config, 0) == 0.5


def test_all_warm_up() -> None:
    config = TrainingConfig(steps=10, lr=1.0, warmup=1.0)
    assert [learning_rate(config, s) for s in range(10)] == pytest.approx(
        [s / 10 for s in range(10)]
    )


def test_the_papers_schedule() -> None:
    config = TrainingConfig(steps=100_000)  # 10 % warm-up, 1e-3, cosine to 1e-6 are the defaults
    assert learning_rate(config, 0) == 0
    assert learning_rate(config, 10_000) == pytest.approx(1e-3)
    assert learning_rate(config, 99_999) == pytest.approx(1e-6, rel=1e-4)


def test_the_first_step_of_a_warm_up_changes_nothing(tmp_path: Path) -> None:
    config = small_config(steps=2, warmup=0.5, checkpoint_every=1)
    run = train(config, tmp_path / "run")
    torch.manual_seed(config.training.seed)
    untrained = dict(SequenceModel(config.model).named_parameters())
    first, second = run.load(1)[1], run.load(2)[1]
    for name, parameter in untrained.items():
        assert torch.equal(first[f"model.{name}"], parameter), name
    assert any(not torch.equal(second[f"model.{n}"], p) for n, p in untrained.items())


def test_metrics_name_the_rate_that_was_used(tmp_path: Path) -> None:
    config = small_config(steps=8, warmup=0.25)
    rates = [row["lr"] for row in train(config, tmp_path / "run").metrics()]
    assert rates == [learning_rate(config.training, step) for step in range(8)]
