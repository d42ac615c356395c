"""What the figure and the tables of an evaluation show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from statetrack.report.evaluation import (
    evaluation_tables,
    lengths_text,
    smooth,
    write_figure,
)
from statetrack.tasks import make_task
from statetrack.training import Curve, Evaluation, curve, evaluate
from tests.training.fakes import right_up_to

PARITY = make_task("parity")
MODEL: Any = right_up_to(PARITY, 9)
RESULTS = [evaluate(MODEL, PARITY, lengths, samples=20) for lengths in (16, (4, 12))]
CURVE = curve(MODEL, PARITY, 40, samples=20)


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The axes of a figure, when it is saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def watched(self: Figure, *args: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *args, **options)

    def draw(results: list[Evaluation], traced: Curve | None) -> Axes:
        write_figure(tmp_path / "figure.png", "title", results, traced, 12)
        return figures[-1].axes[0]

    monkeypatch.setattr(Figure, "savefig", watched)
    return draw


def line(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    (found,) = (line for line in axes.get_lines() if line.get_label() == label)
    return np.asarray(found.get_xdata()).tolist(), np.asarray(found.get_ydata()).tolist()


@pytest.mark.parametrize("traced", [None, CURVE], ids=["points", "curve"])
def test_the_training_length_is_marked(traced: Curve | None, drawn: Any) -> None:
    axes = drawn(RESULTS, traced)
    marks = [np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()]
    assert [12, 12] in marks
    assert "trained up to here" in [text.get_text().strip() for text in axes.texts]


def test_majority_of_points(drawn: Any) -> None:
    lengths, values = line(drawn(RESULTS, None), "always the most frequent answer")
    assert lengths == [8, 16]  # in order, a range at its middle
    assert values == [RESULTS[1].majority, RESULTS[0].majority]


def test_curve(drawn: Any) -> None:
    axes = drawn(RESULTS, CURVE)
    for label, values in (
        ("always the most frequent answer", CURVE.majority),
        ("answer accuracy", CURVE.accuracy),
        ("all answers right so far", CURVE.sequence_accuracy),
    ):
        lengths, shown = line(axes, label)
        assert (lengths[:5], shown[:5]) == ([2, 3, 4, 5, 6], values[:5].tolist())
        assert shown[-1] == pytest.approx(values[-2:].mean(), abs=0.2)


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
