"""The page of `statetrack lm perplexity`: tables and figures of perplexity against position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from statetrack.lm.perplexity import Moments, PerplexityCurve
from statetrack.report.document import Cell, Document, Figure, Series, Table
from statetrack.report.spread import Spread
from statetrack.sweep.environment import environment

POINTS = 96  # of a line
FIRST = 256  # lines begin at 1 / FIRST of the greatest position: perplexity is high before it
NAMING = ("data", "model", "trained at", "seeds", "chunks")


@dataclass(frozen=True)
class Model:
    """The curves of one model on one data set: one, or one a seed."""

    curves: tuple[PerplexityCurve, ...]

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.curves[0].name

    @property
    def running(self) -> Moments:
        """The running mean loss, over seeds if there are several, else over chunks."""
        return _pooled([curve.running for curve in self.curves])

    @property
    def windows(self) -> Moments:
        """The mean loss in windows of positions, over seeds if there are several, else chunks."""
        return _pooled([curve.windows for curve in self.curves])

    @property
    def naming(self) -> list[Cell]:
        """The first cells of its row."""
        first = self.curves[0]
        return [first.data, self.name, first.training_length, len(self.curves), first.chunks]


def _pooled(parts: Sequence[Moments]) -> Moments:
    if len(parts) == 1:
        return parts[0]
    pooled = Moments()
    for part in parts:
        pooled.add(part.mean)
    return pooled


def by_data(curves: Sequence[PerplexityCurve]) -> dict[str, list[Model]]:
    """Group curves by their data, and by the names of their models, in order."""
    found: dict[str, dict[str, list[PerplexityCurve]]] = {}
    for curve in curves:
        found.setdefault(curve.data, {}).setdefault(curve.name, []).append(curve)
    return {data: [Model(tuple(c)) for c in own.values()] for data, own in found.items()}


def figure_positions(max_length: int) -> list[int]:
    """Return the positions of a line's points, at equal ratios."""
    points = np.geomspace(max(1, max_length // FIRST), max_length, POINTS)
    return [int(p) for p in np.unique(points.round())]


def table_positions(curves: Sequence[PerplexityCurve]) -> list[int]:
    """Return 1, 2, 4, ... times the shortest training length, or the last octaves without one."""
    top = curves[0].max_length
    known = [curve.training_length for curve in curves if curve.training_length]
    first = min(known, default=top)
    if first >= top:
        first = max(1, top // 8)
    doubled = [first << i for i in range(top.bit_length()) if first << i < top]
    return [*doubled, top]


def perplexity_document(
    curves: Sequence[PerplexityCurve], command: str, device: str = "cpu"
) -> Document:
    """Make the document of one or more curves, all to the same position.

    Args:
        curves: by checkpoint and data set. Those of one data set become a panel; in it, those of
            one name are seeds of a model, which share a line.
        command: the command that made them.
        device: where the models computed.
    """
    models = [model for own in by_data(curves).values() for model in own]
    positions = table_positions(curves)
    seeds = any(len(model.curves) > 1 for model in models)
    interval = f" Bands are 95 % intervals over {'seeds' if seeds else 'chunks'}."
    definition = (
        "At position t: the exponential of the mean loss of the first t predictions of a chunk, "
        f"averaged over chunks.{interval}"
    )
    windows = "The exponential of the mean loss within a window of positions, averaged over chunks."
    compared = _comparison(curves)
    return Document(
        "perplexity",
        "Perplexity against position",
        [f"Running perplexity at {positions[-1]:,} tokens.", *_summary(curves)],
        [
            _running_table(models, positions),
            _window_table(models, positions),
            *([compared] if compared.rows else []),
        ],
        [
            _figure("Running perplexity against position", curves, False, definition),
            _figure("Perplexity in windows of positions", curves, True, f"{windows}{interval}"),
        ],
        list(dict.fromkeys(f"{curve.checkpoint} is read {curve.how}." for curve in curves)),
        {
            "command": command,
            "tokens": sum(c.chunks * c.max_length for c in curves),
            "seconds": float(sum(c.seconds for c in curves)),
            "made with": environment(device),
        },
    )


def _summary(curves: Sequence[PerplexityCurve]) -> list[str]:
    lines = []
    for data, models in by_data(curves).items():
        found = [f"{model.name} {np.exp(model.running.mean[-1]):.2f}" for model in models]
        lines.append(f"On {data}: {'; '.join(found)}.")
    return lines


def _running_table(models: Sequence[Model], positions: list[int]) -> Table:
    rows: list[list[Cell]] = []
    for model in models:
        values, low, high = model.running.perplexities(np.array(positions) - 1)
        interval = None if low is None else f"{low[-1]:.3f} to {high[-1]:.3f}"
        rows.append([*model.naming, *values, interval])
    columns = [*NAMING, *(f"{p:,}" for p in positions), f"95 % interval at {positions[-1]:,}"]
    note = "Intervals over seeds where there are several, else over chunks."
    return Table("Running perplexity by position", columns, rows, note, name="running")


def _window_table(models: Sequence[Model], positions: list[int]) -> Table:
    """Tabulate the windows that contain the positions of the other table."""
    edges = models[0].curves[0].edges
    held = np.searchsorted(edges[1:], positions)
    rows = [[*model.naming, *model.windows.perplexities(held)[0]] for model in models]
    note = (
        "The window of positions that holds the position above it; windows end at 1.41 times "
        f"their beginning: {edges[-2] + 1:,} to {edges[-1]:,} is the last one."
    )
    columns = [*NAMING, *(f"{p:,}" for p in positions)]
    return Table("Perplexity in windows of positions", columns, rows, note, name="windows")


def _comparison(curves: Sequence[PerplexityCurve]) -> Table:
    """Tabulate ratios of perplexities on the same chunks, which vary less than perplexities do."""
    rows: list[list[Cell]] = []
    for data, (first, *others) in by_data(curves).items():
        for other in others:
            pairs = _pairs(first, other)
            if pairs is None:
                continue
            over, losses = pairs
            spread = Spread(tuple(b - a for a, b in losses))
            ends = spread.interval
            text = None if ends is None else f"{np.exp(ends[0]):.4f} to {np.exp(ends[1]):.4f}"
            ratio = f"{np.exp(spread.mean):.4f}"
            rows.append([data, other.name, first.name, ratio, text, f"{len(losses)} {over}"])
    note = "Below 1 the first of the two predicts better. Both have read the same tokens."
    columns = ["data", "model", "beside", "ratio of perplexities", "95 % interval", "over"]
    return Table("Models side by side", columns, rows, note, name="comparison")


def _pairs(first: Model, other: Model) -> tuple[str, list[tuple[float, float]]] | None:
    """Pair the mean losses of seeds, or of chunks; None if tokens or numbers of seeds differ."""
    both = (*first.curves, *other.curves)
    same_tokens = len({(curve.fingerprint, curve.chunks) for curve in both}) == 1
    if not same_tokens or len(first.curves) != len(other.curves):
        return None
    if len(first.curves) == 1:
        return "chunks", list(zip(first.curves[0].totals, other.curves[0].totals, strict=True))
    totals = ([float(np.mean(curve.totals)) for curve in m.curves] for m in (first, other))
    return "seeds", list(zip(*totals, strict=True))


def _figure(title: str, curves: Sequence[PerplexityCurve], windows: bool, note: str) -> Figure:
    panels = []
    for data, models in by_data(curves).items():
        lengths = dict.fromkeys(c.training_length for m in models for c in m.curves)
        top = curves[0].max_length
        marks = [(float(n), f"trained at {n:,}") for n in lengths if n is not None and n <= top]
        series = [line for model in models for line in _series(model, windows)]
        panels.append(Figure(data, "position", "perplexity", series, marks=marks))
    name = "window-perplexity" if windows else "running-perplexity"
    return Figure(
        title, "position", "perplexity", (), log_x=True, note=note, name=name, panels=panels
    )


def _series(model: Model, windows: bool) -> list[Series]:
    """Return the model's line, and a faint one for each seed if there are several."""
    first = model.curves[0]
    x = first.edges[1:] if windows else figure_positions(first.max_length)
    index = slice(None) if windows else np.array(x) - 1
    whole = model.windows if windows else model.running
    lines = [Series(model.name, x, *whole.perplexities(index), group=model.name)]
    if len(model.curves) > 1:
        for curve in model.curves:
            y = (curve.windows if windows else curve.running).perplexities(index)[0]
            lines.append(Series(curve.checkpoint, x, y, group=model.name, faint=True))
    return lines
