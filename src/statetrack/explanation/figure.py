"""An automaton as circles and arrows, and its cascade as a row of boxes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from statetrack.automata import DFA
from statetrack.compiler.cascade import Cascade, Level
from statetrack.compiler.wording import counted, short
from statetrack.errors import UserError
from statetrack.files import check_figure, save_figure

MAX_DRAWN_STATES = 24  # more would be a tangle, as would more arrows
MAX_DRAWN_ARROWS = 60
MAX_DRAWN_LEVELS = 8
RADIUS = 14.0  # of a state, in points
LABELS = 5  # symbols of an arrow
COLOUR = "#0072b2"
START = "#cfe3f2"
LEVEL, CASCADE = 1.9, 1.6  # width of a level and height of a cascade, in inches
LEAST = 4.0  # width of a figure
LETTERS = 10  # of a title to an inch

Arrows = dict[tuple[int, int], list[str]]  # from a state to one, and the symbols that take it there


def plot(language: str, dfa: DFA, cascade: Cascade | None, path: Path) -> None:
    """Draw the states on a circle, then the levels of the cascade from left to right.

    An automaton with too many states or arrows is left out, with a note.
    """
    from matplotlib.figure import Figure  # slow to load, and most explanations draw nothing

    check_figure(path)
    levels = cascade.levels if cascade else ()
    arrows = _find_arrows(dfa)
    size = f"{counted(dfa.states, 'state')}, {counted(len(arrows), 'arrow')}"
    is_drawn = dfa.states <= MAX_DRAWN_STATES and len(arrows) <= MAX_DRAWN_ARROWS
    if not is_drawn and not levels:
        raise UserError(
            f"there is nothing to draw: the automaton has {size}, of which a figure has at most "
            f"{MAX_DRAWN_STATES} and {MAX_DRAWN_ARROWS}, and the cascade is left out"
        )
    side = 4.0 + 0.11 * dfa.states if is_drawn else 0.0
    heights = [height for height, there in ((side, is_drawn), (CASCADE, levels)) if there]
    left_out = "" if is_drawn else f"automaton left out: {size}"
    boxes = LEVEL * min(len(levels), MAX_DRAWN_LEVELS + 1)
    width = max(side, boxes, len(left_out) / LETTERS, LEAST)
    figure = Figure(figsize=(width, sum(heights) + 0.5), layout="constrained")
    panels = list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False).flat)
    title = textwrap.fill(language, int(LETTERS * width))
    if is_drawn:
        _draw_automaton(panels[0], dfa, arrows)
    else:
        title += f"\n{left_out}"
    if levels:
        _draw_cascade(panels[-1], levels)
    figure.suptitle(title, parse_math=False)  # a text of the user: $ is no formula
    save_figure(path, figure)


def _find_arrows(dfa: DFA) -> Arrows:
    arrows: Arrows = {}
    for state, row in enumerate(dfa.delta.tolist()):
        for symbol, target in zip(dfa.alphabet, row, strict=True):
            arrows.setdefault((state, target), []).append(symbol)
    return arrows


def _draw_automaton(axes: Any, dfa: DFA, arrows: Arrows) -> None:
    angles = np.pi / 2 - 2 * np.pi * np.arange(dfa.states) / dfa.states
    places = np.stack([np.cos(angles), np.sin(angles)], 1) * (dfa.states > 1)
    for (state, target), symbols in arrows.items():
        label = short(symbols, LABELS)
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
        x, y = end - start
        place = (start + end) / 2 + 0.14 * np.array([y, -x])
        style: dict[str, Any] = {"arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.25"}
        style |= {"shrinkA": RADIUS, "shrinkB": RADIUS, "color": COLOUR}
        axes.annotate("", end, start, arrowprops=style)
    axes.text(
        *place, label, ha="center", va="center", fontsize=8, color=COLOUR, parse_math=False,
        bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
    )  # fmt: skip


def _draw_cascade(axes: Any, levels: tuple[Level, ...]) -> None:
    shown = levels if len(levels) <= MAX_DRAWN_LEVELS + 1 else levels[:MAX_DRAWN_LEVELS]
    boxes = [
        "\n".join([f"level {i}: {counted(level.states, 'state')}", *level.kinds()])
        for i, level in enumerate(shown, 1)
    ]
    if len(levels) > len(shown):
        boxes.append(f"and {len(levels) - len(shown):,}\nmore levels")
    for i, text in enumerate(boxes):
        axes.text(
            i, 0, text, ha="center", va="center", fontsize=8,
            bbox={"boxstyle": "round,pad=0.5", "fc": "white", "ec": "black"},
        )  # fmt: skip
        if i:
            axes.annotate("", (i - 0.38, 0), (i - 0.62, 0), arrowprops={"arrowstyle": "-|>"})
    axes.set(xlim=(-0.6, len(boxes) - 0.4), ylim=(-1, 1))
    axes.axis("off")
    reads = "each reads the symbol and the old states to its left"
    if len(levels) == 1:
        reads = "it reads the symbol"
    axes.set_title(f"cascade of {counted(len(levels), 'level')}\n{reads}", fontsize=9)
