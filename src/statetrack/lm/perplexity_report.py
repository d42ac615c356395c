"""The page of `statetrack lm perplexity`: tables and figures of perplexity against position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    def bits_per_byte(self) -> float | None:
        """The mean over seeds; None of tokens whose text is not known."""
        known = [curve.bits_per_byte for curve in self.curves if curve.bits_per_byte is not None]
        return float(np.mean(known)) if known else None

    @property
    def naming(self) -> list[Cell]:
        """The first cells of its row."""
        first = self.curves[0]
        made_for = first.max_positions and f"up to {first.max_positions:,} positions"
        trained = first.training_length or made_for
        return [first.data, self.name, trained, len(self.curves), first.chunks]


class Comparison(NamedTuple):
    """Two models that have read the same tokens."""

    logs: Spread  # logarithms of the ratio of perplexities, second over first
    over: str  # chunks or seeds

    @property
    def ratio(self) -> float:
        """The ratio of perplexities."""
        return float(np.exp(self.logs.mean))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the ratio; None for a single chunk or seed."""
        ends = self.logs.interval
        return None if ends is None else (float(np.exp(ends[0])), float(np.exp(ends[1])))


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
    """Return 1, 2, 4, ... times the shortest training length, or the last octaves without one.

    Of models of other packages, it is the number of positions that they were made for.
    """
    top = curves[0].max_length
    known = [n for curve in curves if (n := curve.training_length or curve.max_positions)]
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
        _summary(curves),
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
    """State for each data set what is claimed, and then the perplexities."""
    lines = []
    for data, models in by_data(curves).items():
        place = f"at {curves[0].max_length:,} tokens on {data}"
        first = models[0]
        lines += [_claim(first, other, place) for other in models[1:]]
        lines += [text for model in models if (text := _beyond_training(model, data))]
        found = [f"{model.name} {np.exp(model.running.mean[-1]):.2f}" for model in models]
        lines.append(f"Running perplexity {place}: {'; '.join(found)}.")
    return lines


def _claim(first: Model, other: Model, place: str) -> str:
    """Claim a difference between two models only if the interval of their ratio excludes 1."""
    if not _same_tokens(first, other):
        both = f"{other.name} and {first.name} have different tokenizers"
        bits = [f"{m.name} {m.bits_per_byte:.3f}" for m in (first, other) if m.bits_per_byte]
        instead = f" Bits per byte {place}: {'; '.join(bits)}." if bits else ""
        return f"{both}: perplexities per token cannot be compared.{instead}"
    compared = _compared(first, other)
    if compared is None:
        counts = f"{len(other.curves)} and {len(first.curves)} seeds"
        return f"{other.name} and {first.name} are not compared {place}: they have {counts}."
    ratio, ends = f"ratio {compared.ratio:.3f}", compared.interval
    if ends is None:
        numbers = f"{ratio}; a single {compared.over.removesuffix('s')} gives no interval"
    else:
        numbers = f"{ratio}, 95 % interval {ends[0]:.3f} to {ends[1]:.3f}"
    if ends is None or ends[0] <= 1 <= ends[1]:
        names = f"{other.name} and {first.name}"
        return f"No difference is claimed {place} between {names} ({numbers})."
    better = "better" if ends[1] < 1 else "worse"
    return f"{other.name} predicts {better} than {first.name} {place} ({numbers})."


def _beyond_training(model: Model, data: str) -> str | None:
    """State whether perplexity rises past the training length; None if nothing was read there.

    A rise is claimed if the 95 % intervals of the windows that hold the training length and the
    greatest position are disjoint.
    """
    curve = model.curves[0]
    length, edges = curve.training_length, curve.edges
    if length is None or length > edges[-2]:
        return None
    at = [int(np.searchsorted(edges[1:], length)), len(edges) - 2]
    value, low, high = model.windows.perplexities(at)
    claim = "no rise is claimed"
    if value[1] <= value[0]:
        claim = "it does not rise"
    elif low is not None and low[1] > high[0]:
        claim = "it rises"
    places = (
        f"{v:.2f} at {edges[i] + 1:,} to {edges[i + 1]:,}" for i, v in zip(at, value, strict=True)
    )
    return (
        f"Perplexity of {model.name} on {data} past its training length of {length:,} tokens: "
        f"{claim} ({', '.join(places)})."
    )


def _running_table(models: Sequence[Model], positions: list[int]) -> Table:
    rows: list[list[Cell]] = []
    texts = any(model.bits_per_byte for model in models)
    for model in models:
        values, low, high = model.running.perplexities(np.array(positions) - 1)
        interval = None if low is None else f"{low[-1]:.3f} to {high[-1]:.3f}"
        rows.append([*model.naming, *values, interval, *([model.bits_per_byte] if texts else [])])
    columns = [*NAMING, *(f"{p:,}" for p in positions), f"95 % interval at {positions[-1]:,}"]
    columns += ["bits per byte"] if texts else []
    note = "Intervals over seeds where there are several, else over chunks."
    note += " Bits per byte of text can be compared between tokenizers." if texts else ""
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
    for first, *others in by_data(curves).values():
        for other in others:
            found = _compared(first, other)
            if found is None:
                continue
            ends = found.interval
            text = None if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"
            count = len(found.logs.scores)
            over = f"{count} {found.over}"
            rows.append(
                [first.curves[0].data, other.name, first.name, f"{found.ratio:.4f}", text, over]
            )
    note = "Below 1 the first of the two predicts better. Both have read the same tokens."
    columns = ["data", "model", "beside", "ratio of perplexities", "95 % interval", "over"]
    return Table("Models side by side", columns, rows, note, name="comparison")


def _compared(first: Model, other: Model) -> Comparison | None:
    """Compare two models by chunks, or by seeds; None if tokens or numbers of seeds differ."""
    if not _same_tokens(first, other) or len(first.curves) != len(other.curves):
        return None
    if len(first.curves) == 1:
        over, (a, b) = "chunks", (first.curves[0].totals, other.curves[0].totals)
    else:
        over = "seeds"
        a, b = (tuple(float(np.mean(c.totals)) for c in m.curves) for m in (first, other))
    return Comparison(Spread(tuple(y - x for x, y in zip(a, b, strict=True))), over)


def _same_tokens(first: Model, other: Model) -> bool:
    """Whether both have read the same tokens; a text has others in another tokenizer."""
    both = (*first.curves, *other.curves)
    return len({(curve.fingerprint, curve.chunks) for curve in both}) == 1


def _figure(title: str, curves: Sequence[PerplexityCurve], windows: bool, note: str) -> Figure:
    panels = []
    for data, models in by_data(curves).items():
        marks = dict.fromkeys(mark for m in models for c in m.curves for mark in _marks(c))
        series = [line for model in models for line in _series(model, windows)]
        panels.append(Figure(data, "position", "perplexity", series, marks=list(marks)))
    name = "window-perplexity" if windows else "running-perplexity"
    return Figure(
        title, "position", "perplexity", (), log_x=True, note=note, name=name, panels=panels
    )


def _marks(curve: PerplexityCurve) -> list[tuple[float, str]]:
    """Mark the training length or, if it is unknown, the positions that the model was made for."""
    n, text = curve.training_length, "trained at {:,}"
    if n is None:
        n, text = curve.max_positions, "up to {:,} positions"
    return [(float(n), text.format(n))] if n is not None and n <= curve.max_length else []


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
