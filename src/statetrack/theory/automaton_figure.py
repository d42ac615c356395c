"""An automaton as circles and arrows, and its cascade as a row of boxes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from statetrack.automata import DFA
from statetrack.errors import UserError
from statetrack.files import check_figure, save_figure
from statetrack.theory.cascade import Level

if TYPE_CHECKING:
    from statetrack.theory.explanation import Explanation

MAX_STATES = 24  # more would be a tangle
RADIUS = 14.0  # of a state, in points
LABELS = 5  # symbols of an arrow
COLOUR = "#0072b2"
START = "#cfe3f2"
LEVEL = 1.9  # inches


def plot(explanation: Explanation, path: Path) -> None:
    """The states on a circle, then the levels of the cascade from left to right."""
    from matplotlib.figure import Figure  # slow to load, and most explanations draw nothing

    check_figure(path)
    dfa = explanation.dfa
    levels = explanation.cascade.levels if explanation.cascade else ()
    if dfa.states > MAX_STATES:
        raise UserError(f"a figure has at most {MAX_STATES} states; this DFA has {dfa.states:,}")
    side = 4.0 + 0.11 * dfa.states
    width = max(side, LEVEL * len(levels))
    figure = Figure(figsize=(width, side + 1.6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[side, 1.6])
    _draw_automaton(above, dfa)
    _draw_cascade(below, levels)
    # a text of the user: $ is no formula
    above.set_title(explanation.language.text, parse_math=False)
    save_figure(path, figure)


def _draw_automaton(axes: Any, dfa: DFA) -> None:
    angles = np.pi / 2 - 2 * np.pi * np.arange(dfa.states) / dfa.states
    places = np.stack([np.cos(angles), np.sin(angles)], 1) * (dfa.states > 1)
    arrows: dict[tuple[int, int], list[str]] = {}
    for state, row in enumerate(dfa.delta.tolist()):
        for symbol, target in zip(dfa.alphabet, row, strict=True):
            arrows.setdefault((state, target), []).append(symbol)
    for (state, target), symbols in arrows.items():
        label = ",".join(symbols[:LABELS]) + (",..." if len(symbols) > LABELS else "")
        _arrow(axes, places[state], places[target], label)
    for state, (x, y) in enumerate(places):
        colour = START if state == dfa.start else "white"
        size = (2 * RADIUS) ** 2
        axes.scatter(x, y, s=size, c=colour, edgecolors="black", linewidths=1.2, zorder=3)
        if dfa.accepting[state]:
            axes.scatter(x, y, s=0.64 * size, c="none", edgecolors="black", zorder=4)
        axes.text(x, y, str(state), ha="center", va="center", zorder=5, fontsize=9)
    about = "blue: the start; two circles: accepting"
    axes.text(0, -1.5, about, ha="center", va="top", fontsize=8, color="0.3")
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.45), aspect="equal")
    axes.axis("off")


def _arrow(axes: Any, start: Any, end: Any, label: str) -> None:
    if (start == end).all():  # a ring behind the state, away from the middle
        out = start / np.linalg.norm(start) if start.any() else np.array([0.0, 1.0])
        size = (1.5 * RADIUS) ** 2
        axes.scatter(*(start + 0.15 * out), s=size, c="none", edgecolors=COLOUR, linewidths=1.2)
        place = start + 0.36 * out
    else:
        way = end - start
        place = (start + end) / 2 + 0.14 * np.array([way[1], -way[0]])
        style: dict[str, Any] = {"arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.25"}
        style |= {"shrinkA": RADIUS, "shrinkB": RADIUS, "color": COLOUR}
        axes.annotate("", end, start, arrowprops=style)
    axes.text(
        *place, label, ha="center", va="center", fontsize=8, color=COLOUR, parse_math=False,
        bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
    )  # fmt: skip


def _draw_cascade(axes: Any, levels: tuple[Level, ...]) -> None:
    for i, level in enumerate(levels):
        kinds = {
            "identities": int(level.is_identity().sum()),
            "permutations": level.permutations,
            "resets": int(level.is_reset().sum()),
        }
        what = "\n".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        axes.text(
            i, 0, f"level {i + 1}: {level.width} states\n{what}", ha="center", va="center",
            fontsize=8, bbox={"boxstyle": "round,pad=0.5", "fc": "white", "ec": "black"},
        )  # fmt: skip
        if i:
            axes.annotate("", (i - 0.38, 0), (i - 0.62, 0), arrowprops={"arrowstyle": "-|>"})
    axes.set(xlim=(-0.6, max(1, len(levels)) - 0.4), ylim=(-1, 1))
    axes.axis("off")
    if levels:
        axes.set_title("cascade: a level's symbols are the old coordinates before it", fontsize=9)
