"""Tables of an evaluation, as (title, column names, rows)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from statetrack.training import Evaluation

Table = tuple[str, list[str], list[list[str]]]
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
