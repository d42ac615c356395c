"""What the figure and the tables of an evaluation show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from statetrack.report.document import Figure, Series
from statetrack.report.evaluation import (
    evaluation_figure,
    evaluation_tables,
    lengths_text,
    smooth,
)
from statetrack.tasks import make_task
from statetrack.training import Curve, curve, evaluate
from tests.training.fakes import right_up_to

PARITY = make_task("parity")
MODEL: Any = right_up_to(PARITY, 9)
RESULTS = [evaluate(MODEL, PARITY, lengths, samples=20) for lengths in (16, (4, 12))]
CURVE = curve(MODEL, PARITY, 40, samples=20)


def line(figure: Figure, label: str) -> Series:
    (found,) = (series for series in figure.series if series.label == label)
    return found


@pytest.mark.parametrize("traced", [None, CURVE], ids=["points", "curve"])
def test_the_training_length_is_marked(traced: Curve | None) -> None:
    assert evaluation_figure("title", RESULTS, traced, 12).marks == ((12, "trained up to 12"),)
    assert evaluation_figure("title", RESULTS, traced, None).marks == ()


@pytest.mark.parametrize("traced", [None, CURVE], ids=["points", "curve"])
def test_points(traced: Curve | None) -> None:
    figure = evaluation_figure("title", RESULTS, traced, 12)
    points = line(figure, "answer accuracy, samples of a length or range")
    assert points.x == [8, 16]  # in order, a range at its middle
    ordered = RESULTS[::-1]
    assert points.y == [r.score for r in ordered]
    assert (points.low, points.high) == ([r.low for r in ordered], [r.high for r in ordered])


def test_majority_of_points() -> None:
    majority = line(
        evaluation_figure("title", RESULTS, None, 12), "always the most frequent answer"
    )
    assert majority.x == [8, 16]
    assert majority.y == [RESULTS[1].majority, RESULTS[0].majority]


def test_curve() -> None:
    figure = evaluation_figure("title", RESULTS, CURVE, 12)
    for label, values in (
        ("always the most frequent answer", CURVE.majority),
        ("answer accuracy", CURVE.accuracy),
        ("all answers right so far", CURVE.sequence_accuracy),
    ):
        shown = line(figure, label)
        assert (shown.x[:5], shown.y[:5]) == ([2, 3, 4, 5, 6], values[:5].tolist())
        assert shown.y[-1] == pytest.approx(values[-2:].mean(), abs=0.2)


def test_bins() -> None:
    lengths = np.arange(1, 1001)
    values = (lengths % 2).astype(float)
    at, mean = smooth(lengths, values)
    assert at[:10].tolist() == list(range(1, 11))  # short lengths are shown as they are
    assert mean[:10].tolist() == values[:10].tolist()
    assert mean[at > 200] == pytest.approx(0.5, abs=0.05)
    assert len(at) < 70


def test_tables() -> None:
    ((title, columns, rows),) = evaluation_tables("M", RESULTS)
    assert title == "M: answer accuracy"
    assert columns[:5] == ["length", "answer", "95 % interval", "majority", "scaled"]
    assert columns[5:] == ["sequence", "token"]
    for row, r in zip(rows, RESULTS, strict=True):
        assert row[0] == lengths_text(r.min_length, r.max_length)
        assert row[2] == f"{r.low:.4f}-{r.high:.4f}"
        numbers = (r.score, r.majority, r.scaled, r.sequence_accuracy, r.token_accuracy)
        assert [row[1], *row[3:]] == [f"{n:.4f}" for n in numbers]
    assert [row[0] for row in rows] == ["16", "4-12"]
