"""The figure: eigenvalues on the complex plane, their real parts, and retention by length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from statetrack.diagnosis.spectrum import Points, Spectrum
from statetrack.files import check_figure, save_figure

if TYPE_CHECKING:
    from statetrack.diagnosis.horizon import Horizon
    from statetrack.diagnosis.report import Diagnosis, LayerReport

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
OTHERS = "0.45"
BEFORE = "0.55"
RETENTION_HEIGHT = 2.6  # inches
MAX_COLUMNS = 4  # layers side by side
BIN = 0.04  # of the histograms
TICKS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def plot(diagnosis: Diagnosis, path: Path) -> None:
    """Draw one panel per layer: the unit disk, colour = token, area = count; real parts below.

    Real eigenvalues lie on one line, many of them on one point (DeltaNet's 1): below the disk, each
    token has a lane with a histogram on a logarithmic scale. Eigenvalues before training are grey.
    At the bottom: how much of the difference between states each head retains.
    """
    from matplotlib.figure import Figure  # slow to import

    check_figure(path)
    lanes = _lanes(diagnosis)
    count = len(diagnosis.layers)
    columns = min(count, MAX_COLUMNS)
    rows = -(-count // columns)
    below_height = 0.12 + 0.1 * len(lanes)  # in widths
    predicted = diagnosis.horizon.prediction
    retention = predicted is not None and bool(predicted.points)
    figure = Figure(
        figsize=(
            max(5.6 if retention else 4.4, 3.3 * columns + 0.4),
            (2.9 * (1 + below_height) + 0.9) * rows + 0.9 + RETENTION_HEIGHT * retention,
        ),
        layout="constrained",
    )
    heights = [*[1.0, below_height] * rows, *[RETENTION_HEIGHT / 2.9] * retention]
    places = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    grid = np.array(
        [[figure.add_subplot(places[y, x]) for x in range(columns)] for y in range(2 * rows)]
    )
    if retention:
        _draw_retention(figure.add_subplot(places[-1, :]), diagnosis.horizon)
    reach = 1.12 * max([1.0, *(_reach(s) for layer in diagnosis.layers for s in _both(layer))])
    for i in range(rows * columns):
        row, column = divmod(i, columns)
        disk, below = grid[2 * row : 2 * row + 2, column]
        if i >= count:
            disk.axis("off")
            below.axis("off")
            continue
        for axes, height in ((disk, 1.0), (below, below_height)):
            axes.set(xlim=(-reach, reach), box_aspect=height, xticks=TICKS)
            axes.tick_params(labelsize=8)
        _draw_disk(disk, diagnosis.layers[i], lanes, reach)
        _draw_lanes(below, diagnosis.layers[i], lanes)
        disk.set_title(f"layer {i}", fontsize=10)
        below.set_xlabel("Re λ", fontsize=9)
        if column == 0:
            disk.set_ylabel("Im λ", fontsize=9)
            below.set_ylabel("token (log counts)", fontsize=9)
    figure.suptitle(f"{diagnosis.title}\neigenvalues of the transitions", fontsize=10)
    _legend(figure, diagnosis)
    save_figure(path, figure)


def _draw_retention(axes: Any, horizon: Horizon) -> None:
    """The retained share of the difference between states, by head, and the predicted accuracy."""
    found = horizon.prediction
    assert found is not None
    lengths = [point.length for point in found.points]
    for head, colour in zip(horizon.listed_heads(), COLOURS, strict=False):
        retained = [point.retained[head.layer][head.head] for point in found.points]
        values = np.array(retained, dtype=float)  # NaN for None
        width = 2.4 if head == found.limiting else 1.2
        axes.plot(lengths, values, ".-", color=colour, lw=width, ms=4, label=head.name)
    accuracy = [point.accuracy for point in found.points]
    axes.plot(lengths, accuracy, color="0.2", lw=1.2, ls="--", label="predicted accuracy")
    axes.axvline(horizon.trained, color="0.7", lw=0.8)
    axes.text(horizon.trained, -0.06, " trained to", fontsize=7, color="0.4")
    if found.limiting is not None:
        axes.axvline(found.horizon, color="0.2", lw=0.8, label="predicted horizon")
    measured = horizon.measured
    if measured is not None and measured.horizon and not measured.beyond:
        axes.axvline(measured.horizon, color="0.2", lw=0.8, ls=":", label="measured horizon")
    axes.set(xscale="log", ylim=(-0.1, 1.08), xlabel="length", ylabel="retained share")
    axes.set_title("difference between states, by head", fontsize=10)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _both(layer: LayerReport) -> list[Spectrum]:
    return [s for s in (layer.before, layer.spectrum) if s is not None]


def _reach(spectrum: Spectrum) -> float:
    return float(np.abs(spectrum.points.value).max())


class Lane(NamedTuple):
    """Tokens that share a colour and a histogram."""

    name: str
    tokens: NDArray[np.int64]
    colour: str


def _lanes(diagnosis: Diagnosis) -> list[Lane]:
    """One lane for each of the most frequent tokens; the others share one."""
    counts = np.zeros(len(diagnosis.vocab), dtype=np.int64)
    for layer in diagnosis.layers:
        if layer.spectrum is not None:
            np.add.at(counts, layer.spectrum.points.token, layer.spectrum.points.count)
    present = np.flatnonzero(counts)
    most = np.sort(present[np.argsort(-counts[present], kind="stable")][: len(COLOURS)])
    rest = np.setdiff1d(present, most)
    lanes = [
        Lane(diagnosis.vocab[token], np.array([token]), colour)
        for token, colour in zip(most, COLOURS, strict=False)
    ]
    return [*lanes, Lane(f"{len(rest)} others", rest, OTHERS)] if len(rest) else lanes


def _draw_disk(axes: Any, layer: LayerReport, lanes: list[Lane], reach: float) -> None:
    turn = np.exp(2j * np.pi * np.linspace(0, 1, 361))
    axes.plot(turn.real, turn.imag, color="0.75", lw=0.8)
    axes.axhline(0, color="0.88", lw=0.8, zorder=0)
    axes.axvline(0, color="0.88", lw=0.8, zorder=0)
    axes.set(ylim=(-reach, reach), yticks=TICKS)
    if layer.spectrum is None:
        axes.text(0, 0, "no linear RNN", ha="center", va="center", color="0.4", fontsize=9)
        return
    if not layer.spectrum.points.value.imag.any():
        axes.text(0.03, 0.97, "all real", transform=axes.transAxes, va="top", fontsize=8)
    if layer.before is not None:
        points = layer.before.points
        axes.scatter(points.value.real, points.value.imag, s=_areas(points) + 14,
                     facecolors="none", edgecolors=BEFORE, lw=0.8, zorder=2)  # fmt: skip
    points = layer.spectrum.points
    colours = {int(token): lane.colour for lane in lanes for token in lane.tokens}
    largest_first = np.argsort(-points.count, kind="stable")  # so that none hides another
    axes.scatter(
        points.value.real[largest_first],
        points.value.imag[largest_first],
        s=_areas(points)[largest_first],
        c=[colours[int(t)] for t in points.token[largest_first]],
        alpha=0.75, lw=0, zorder=3,
    )  # fmt: skip


def _areas(points: Points) -> NDArray[np.float64]:
    """By the logarithm, since counts differ by orders of magnitude."""
    scale = np.log1p(points.count) / np.log1p(points.count.max())
    return 6 + 60 * scale**2


def _draw_lanes(axes: Any, layer: LayerReport, lanes: list[Lane]) -> None:
    axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes], fontsize=8)
    axes.set_ylim(len(lanes) - 0.3, -0.6)
    axes.grid(axis="x", alpha=0.2)
    if layer.spectrum is None:
        return
    reals = [s.points.value.real for s in _both(layer)]
    low, high = (min(-1.0, *(r.min() for r in reals)), max(1.0, *(r.max() for r in reals)))
    edges = np.arange(np.floor(low / BIN) - 0.5, np.ceil(high / BIN) + 1) * BIN
    heights = [_heights(s.points, lanes, edges) for s in _both(layer)]
    after, before = heights[-1], heights[0] if layer.before is not None else None
    top = max(h.max() for h in heights) / 0.85
    for y, lane in enumerate(lanes):  # the axis points down: a lane rises from y + 0.5
        base = y + 0.5
        axes.axhline(base, color="0.85", lw=0.6, zorder=0)
        axes.stairs(base - after[y] / top, edges, baseline=base, fill=True, color=lane.colour)
        if before is not None:
            axes.stairs(base - before[y] / top, edges, baseline=base, color=BEFORE, lw=0.9)


def _heights(points: Points, lanes: list[Lane], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """[lanes, bins], logarithms of counts."""
    chosen = [np.isin(points.token, lane.tokens) for lane in lanes]
    counts = [np.histogram(points.value.real[c], edges, weights=points.count[c])[0] for c in chosen]
    return np.log1p(np.array(counts))


def _legend(figure: Any, diagnosis: Diagnosis) -> None:
    if all(layer.before is None for layer in diagnosis.layers):
        return
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], marker="o", ls="", color="0.2", ms=5, label="after training"),
        Line2D([], [], marker="o", ls="", mec=BEFORE, mfc="none", ms=6, label="before"),
    ]
    figure.legend(handles=entries, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
