"""Tables and the figure of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statetrack.report.document import Figure, Series
from statetrack.training import Curve, Evaluation
from statetrack.training.evaluate import scaled

Floats = NDArray[np.float64]
Lengths = NDArray[np.integer[Any]] | Floats
Table = tuple[str, list[str], list[list[str]]]

MAJORITY = "always the most frequent answer"
BASELINE = "majority baseline"  # in tables of scaled scores
BASELINE_NOTE = (
    "The majority baseline is the scaled score of giving the most frequent answer at each position."
)
ABOVE_CHANCE = 0.01  # scaled; the baseline's score is measured, to 0.003
POSITIONS = 8  # columns that fit on a line beside the length


def evaluation_tables(title: str, results: Sequence[Evaluation]) -> list[Table]:
    """Return tables of accuracy by length and, if an answer has several tokens, by position."""
    metric = results[0].metric
    others = [name for name in ("answer", "sequence", "token") if name != metric]
    columns = ["length", metric, "95 % interval", "majority", "scaled", *others]
    rows = [
        [
            lengths_text(r.min_length, r.max_length),
            f"{r.score:.4f}",
            f"{r.low:.4f}-{r.high:.4f}",
            f"{r.majority:.4f}",
            f"{r.scaled:.4f}",
            *(f"{getattr(r, f'{name}_accuracy'):.4f}" for name in others),
        ]
        for r in results
    ]
    tables: list[Table] = [(f"{title}: {metric} accuracy", columns, rows)]
    most = max(len(r.position_accuracy) for r in results)
    if most > 1:
        shown = np.unique(np.geomspace(1, most, POSITIONS).round().astype(int)).tolist()
        by_position = [
            [
                lengths_text(r.min_length, r.max_length),
                *(
                    f"{r.position_accuracy[n - 1]:.3f}" if n <= len(r.position_accuracy) else "-"
                    for n in shown
                ),
            ]
            for r in results
        ]
        heading = f"Accuracy at output 1 to {most} of a sequence, in part (--json has all)"
        tables.append((heading, ["length", *map(str, shown)], by_position))
    return tables


def lengths_text(low: int, high: int) -> str:
    """Format a length, or a range of lengths."""
    return str(low) if low == high else f"{low}-{high}"


def chance_level(evaluations: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the score of guessing, from evaluations of one task; None if all are perfect."""
    lowest = min(evaluations, key=lambda e: float(e["scaled"]), default=None)
    if lowest is None or lowest["scaled"] >= 1:
        return None
    return float((lowest["score"] - lowest["scaled"]) / (1 - lowest["scaled"]))


def scaled_majority(evaluation: Mapping[str, Any], chance: float | None) -> float | None:
    """Return the scaled score of the majority baseline if it beats chance, else None."""
    if chance is None or "majority" not in evaluation:  # older versions did not measure it
        return None
    level = float(scaled(evaluation["majority"], chance))
    return level if level > ABOVE_CHANCE else None


def smooth(lengths: Lengths, values: Floats) -> tuple[Floats, Floats]:
    """Average over bins of 8 % of the length, which removes most of the sampling noise."""
    bins = np.unique(np.log(lengths) // np.log(1.08), return_inverse=True)[1]
    count = np.bincount(bins)
    return np.bincount(bins, lengths) / count, np.bincount(bins, values) / count


def evaluation_figure(
    title: str, results: Sequence[Evaluation], curve: Curve | None, trained: int | None
) -> Figure:
    """Return accuracy against length with 95 % intervals.

    Args:
        title: of the figure.
        results: drawn as points, a range of lengths at its middle.
        curve: drawn as a line of averages over bins of 8 % of the length.
        trained: the greatest training length, which is marked.
    """
    found = sorted(results, key=_middle)
    middle = [_middle(r) for r in found]
    label = f"{results[0].metric} accuracy, samples of a length or range"
    low, high = [r.low for r in found], [r.high for r in found]
    lines = [Series(label, middle, [r.score for r in found], low, high)]
    if curve is None:
        lines.append(Series(MAJORITY, middle, [r.majority for r in found], dashed=True))
    else:
        n, metric = curve.lengths, f"{curve.metric} accuracy"
        low, high = (smooth(n, side)[1].tolist() for side in (curve.low, curve.high))
        lines = [
            Series(metric, *_line(n, curve.accuracy), low, high),
            *lines,
            Series("all answers right so far", *_line(n, curve.sequence_accuracy)),
            Series(MAJORITY, *_line(n, curve.majority), dashed=True),
        ]
    return Figure(
        title,
        "sequence length",
        "accuracy",
        lines,
        log_x=True,
        marks=() if trained is None else ((trained, f"trained up to {trained:,}"),),
        y_range=(-0.03, 1.05),
    )


def _middle(result: Evaluation) -> float:
    return (result.min_length + result.max_length) / 2


def _line(lengths: Lengths, values: Floats) -> tuple[list[float], list[float]]:
    x, y = smooth(lengths, values)
    return x.tolist(), y.tolist()
