"""The page of `statetrack lm perplexity`: tables and figures of perplexity against position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from statetrack.lm.perplexity import Moments, PerplexityCurve
from statetrack.report.document import Cell, Document, Figure, Series, Table
from statetrack.report.spread import Spread
from statetrack.sweep.environment import environment

POINTS = 96  # of a line
FIRST = 256  # lines begin at this part of the greatest position: the first tokens are hard to guess


def figure_positions(max_length: int) -> list[int]:
    """Return the positions of a line's points, at equal ratios."""
    points = np.geomspace(max(1, max_length // FIRST), max_length, POINTS)
    return [int(p) for p in np.unique(points.round())]


def table_positions(curves: Sequence[PerplexityCurve]) -> list[int]:
    """Return 1, 2, 4, ... times the shortest training length, or the last octaves without one."""
    top = min(curve.max_length for curve in curves)
    known = [curve.training_length for curve in curves if curve.training_length]
    first = min(known, default=top)
    if first >= top:
        first = max(1, top // 8)
    doubled = [first << i for i in range(top.bit_length()) if first << i < top]
    return [*doubled, top]


def perplexity_document(curves: Sequence[PerplexityCurve], command: str) -> Document:
    """Make the document of one or more curves.

    Args:
        curves: by checkpoint and data set; those of one data set become a panel.
        command: what was typed.
    """
    curves = [curve for own in by_data(curves).values() for curve in own]
    positions = table_positions(curves)
    tables = [_running_table(curves, positions), _window_table(curves, positions)]
    compared = _comparison(curves)
    if compared.rows:
        tables.append(compared)
    chunks = max(curve.chunks for curve in curves)
    interval = " Bands are 95 % intervals over chunks." if chunks > 1 else ""
    definition = (
        "At position t: the exponential of the mean loss of the first t predictions of a chunk, "
        f"averaged over chunks.{interval}"
    )
    windows = "The exponential of the mean loss within a window of positions, averaged over chunks."
    figures = [
        _figure("Running perplexity against position", curves, False, definition),
        _figure("Perplexity in windows of positions", curves, True, f"{windows}{interval}"),
    ]
    top = positions[-1]
    summary = [
        f"On {data}: " + "; ".join(f"{c.checkpoint} {c.at(top):.2f}" for c in own) + "."
        for data, own in by_data(curves).items()
    ]
    return Document(
        "perplexity",
        "Perplexity against position",
        [f"Running perplexity at {top:,} tokens.", *summary],
        tables,
        figures,
        list(dict.fromkeys(f"{curve.checkpoint} is read {curve.how}." for curve in curves)),
        {
            "command": command,
            "tokens": sum(c.chunks * c.max_length for c in curves),
            "seconds": float(sum(c.seconds for c in curves)),
            "made with": environment(),
        },
    )


def by_data(curves: Sequence[PerplexityCurve]) -> dict[str, list[PerplexityCurve]]:
    """Group curves by the name of their data, in order."""
    names = dict.fromkeys(curve.data for curve in curves)
    return {name: [curve for curve in curves if curve.data == name] for name in names}


def _running_table(curves: Sequence[PerplexityCurve], positions: list[int]) -> Table:
    rows = [
        [*_naming(curve), *(curve.at(p) for p in positions), _interval(curve.running)]
        for curve in curves
    ]
    columns = [*NAMING, *(f"{p:,}" for p in positions), f"95 % interval at {positions[-1]:,}"]
    return Table("Running perplexity by position", columns, rows, name="running")


def _window_table(curves: Sequence[PerplexityCurve], positions: list[int]) -> Table:
    """The windows that hold the positions of the other table."""
    rows = []
    for curve in curves:
        held = [int(np.searchsorted(curve.edges[1:], p)) for p in positions]
        rows.append([*_naming(curve), *(float(np.exp(curve.windows.mean[i])) for i in held)])
    size = curves[0].edges[1]
    note = f"Windows of {size:,} positions that hold the position above them."
    columns = [*NAMING, *(f"{p:,}" for p in positions)]
    return Table("Perplexity in windows of positions", columns, rows, note, name="windows")


NAMING = ("data", "checkpoint", "trained at", "chunks")


def _naming(curve: PerplexityCurve) -> list[Cell]:
    return [curve.data, curve.checkpoint, curve.training_length, curve.chunks]


def _interval(moments: Moments) -> str | None:
    ends = moments.interval
    return None if ends is None else " to ".join(f"{np.exp(end[-1]):.3f}" for end in ends)


def _comparison(curves: Sequence[PerplexityCurve]) -> Table:
    """Ratios of perplexities on the same chunks, which vary less than the perplexities."""
    rows: list[list[Cell]] = []
    for data, (first, *others) in by_data(curves).items():
        for other in others:
            same = (other.fingerprint, other.chunks) == (first.fingerprint, first.chunks)
            if not same:  # tokens of another tokenizer
                continue
            pairs = zip(other.totals, first.totals, strict=True)
            spread = Spread(tuple(b - a for b, a in pairs))
            ends = spread.interval
            text = None if ends is None else f"{np.exp(ends[0]):.4f} to {np.exp(ends[1]):.4f}"
            ratio = f"{np.exp(spread.mean):.4f}"
            rows.append([data, other.checkpoint, first.checkpoint, ratio, text])
    note = "Below 1: the first one predicts better. Both read the same chunks; intervals over them."
    columns = ["data", "checkpoint", "beside", "ratio of perplexities", "95 % interval"]
    return Table("Checkpoints side by side", columns, rows, note, name="comparison")


def _figure(title: str, curves: Sequence[PerplexityCurve], windows: bool, note: str) -> Figure:
    panels = []
    for data, own in by_data(curves).items():
        lengths = dict.fromkeys(c.training_length for c in own)
        top = max(c.max_length for c in own)
        marks = [(float(n), f"trained at {n:,}") for n in lengths if n is not None and n <= top]
        series = [_series(curve, windows) for curve in own]
        panels.append(Figure(data, "position", "perplexity", series, marks=marks))
    name = "window-perplexity" if windows else "running-perplexity"
    return Figure(
        title, "position", "perplexity", (), log_x=True, note=note, name=name, panels=panels
    )


def _series(curve: PerplexityCurve, windows: bool) -> Series:
    if windows:
        return Series(curve.checkpoint, curve.edges[1:], *curve.windows.perplexities())
    x = figure_positions(curve.max_length)
    return Series(curve.checkpoint, x, *curve.running.perplexities(np.array(x) - 1))
