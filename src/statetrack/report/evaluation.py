"""Tables and the figure of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statetrack.files import save_figure
from statetrack.training import Curve, Evaluation

Floats = NDArray[np.float64]
Lengths = NDArray[np.integer[Any]] | Floats
Table = tuple[str, list[str], list[list[str]]]

MAJORITY = "always the most frequent answer"
POSITIONS = 8  # columns that fit on a line beside the length


def evaluation_tables(title: str, results: Sequence[Evaluation]) -> list[Table]:
    """Return accuracy by length and, if an answer has several tokens, by position in it."""
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


def smooth(lengths: Lengths, values: Floats) -> tuple[Floats, Floats]:
    """Average over bins of 8 % of the length, which removes most of the sampling noise."""
    bins = np.unique(np.log(lengths) // np.log(1.08), return_inverse=True)[1]
    count = np.bincount(bins)
    return np.bincount(bins, lengths) / count, np.bincount(bins, values) / count


def write_figure(
    path: Path,
    title: str,
    results: Sequence[Evaluation],
    curve: Curve | None,
    trained: int | None,
) -> None:
    """Draw accuracy against length with 95 % intervals.

    Args:
        path: the file to write.
        title: of the figure.
        results: drawn as points.
        curve: drawn as a line of averages over bins of 8 % of the length.
        trained: the greatest training length, which is marked.
    """
    from matplotlib.figure import Figure  # slow to load, and most evaluations draw nothing

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    if curve is not None:
        n = curve.lengths
        axes.plot(*smooth(n, curve.majority), color="0.6", lw=0.8, label=MAJORITY)
        axes.plot(*smooth(n, curve.accuracy), color="#0072b2", lw=1.2,
                  label=f"{curve.metric} accuracy")  # fmt: skip
        axes.fill_between(*smooth(n, curve.low), smooth(n, curve.high)[1], color="#0072b2",
                          alpha=0.2, lw=0)  # fmt: skip
        axes.plot(*smooth(n, curve.sequence_accuracy), color="#009e73", ls="--",
                  label="all answers right so far")  # fmt: skip
    middle = [(r.min_length + r.max_length) / 2 for r in results]
    score = [r.score for r in results]
    spread = [[r.score - r.low for r in results], [r.high - r.score for r in results]]
    spread = [[max(0.0, s) for s in side] for side in spread]
    reach = [(r.max_length - r.min_length) / 2 for r in results]
    axes.errorbar(middle, score, xerr=reach, yerr=spread, fmt="o", color="#d55e00",
                  label=f"{results[0].metric} accuracy, samples of a length or range")  # fmt: skip
    if curve is None:
        order = np.argsort(middle)
        axes.plot(np.array(middle)[order], np.array([r.majority for r in results])[order],
                  color="0.6", lw=0.8, marker="_", label=MAJORITY)  # fmt: skip
    if trained is not None:
        axes.axvline(trained, color="0.4", lw=0.8, ls="--")
        axes.text(trained, 1.03, " trained up to here", fontsize=8, color="0.4")
    axes.set(xscale="log", xlabel="sequence length", ylabel="accuracy", ylim=(-0.03, 1.1))
    shown = [n for r in results for n in (r.min_length, r.max_length)]
    shown += [] if trained is None else [trained]
    shown += [] if curve is None else curve.lengths[[0, -1]].tolist()
    powers = np.log2([min(shown), max(shown)]).round().astype(int)
    ticks = 2 ** np.arange(powers[0], powers[1] + 1, 1 + (powers[1] - powers[0]) // 10)
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.set_xticks([], minor=True)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.2)
    axes.legend(fontsize=8)
    save_figure(path, figure)
