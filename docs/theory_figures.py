"""Draw the figures of docs/theory.md: `python -m docs.theory_figures docs`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from statetrack.automata import from_regex
from statetrack.compiler import Cascade, decompose
from statetrack.compiler.factor import permutation, product, swaps
from statetrack.diagnosis.figure import COLOURS
from statetrack.errors import UserError
from statetrack.files import save_figure
from statetrack.recipes.states import EIGENVALUES, TOKENS, settles, states_on_ones
from statetrack.recipes.swaps import POINTS

BLUE, ORANGE = COLOURS[:2]
EVEN_AB = "b*(aa*bb*aa*bb*)*a*"  # "ab" occurs an even number of times
WORD = "abbabaab"
LEFT, TOP = -4.2, 0.4  # where the boxes of a cascade begin, and the letters of its word
SIGNS = ListedColormap([ORANGE, "white", BLUE])  # of -1, 0, 1


def draw_states(path: Path) -> None:
    """Draw the states of a scalar recurrence on 1111..., for some eigenvalues."""
    figure = Figure(figsize=(8.5, 2.7), layout="constrained")
    panels = figure.subplots(1, len(EIGENVALUES), sharey=True)
    t = np.arange(TOKENS + 1)
    for axes, a in zip(panels, EIGENVALUES, strict=True):
        h = states_on_ones(a, TOKENS).numpy()
        axes.plot(t, h, color="0.8", lw=0.8, zorder=1)
        for odd, colour, marker in ((0, BLUE, "o"), (1, ORANGE, "s")):
            axes.plot(t[odd::2], h[odd::2], ls="", marker=marker, ms=3.5, color=colour,
                      label="odd number of ones" if odd else "even number of ones")  # fmt: skip
        end = settles(a)
        below = "alternates for ever" if end is None else f"constant in bf16 from t = {end}"
        axes.set_title(f"a = {a:g}".replace("-", "\N{MINUS SIGN}"), fontsize=10)
        axes.set_xlabel(f"t\n{below}", fontsize=8.5)
        axes.set(ylim=(-0.06, 1.06), xticks=range(0, TOKENS + 1, 8), yticks=(0, 0.5, 1))
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.2)
    panels[0].set_ylabel("state $h_t$ on the input 1111…", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    save_figure(path, figure)


def draw_swaps(path: Path, points: Sequence[int] = POINTS) -> None:
    """A permutation as a product of swaps: objects on their way, matrices and their vectors."""
    n, factors, pairs = len(points), permutation(points), swaps(points)
    matrices = [product(factors, n), *(factor.dense() for factor in factors)]
    count = len(matrices)
    layout = ConstrainedLayoutEngine(wspace=0.12)  # room for = and ·
    figure = Figure(figsize=(2.1 * count, 4.4), layout=layout)
    grid = figure.subplots(3, count, height_ratios=[1, 1, 0.2], squeeze=False)
    objects = np.arange(n)  # on each place, before the swap that acts first
    for column in range(count - 1, -1, -1):
        wires, heat, strip = grid[:, column]
        moves = matrices[column].argmax(axis=0)
        _draw_wires(wires, objects if column else np.arange(n), moves)
        if column:
            objects = objects[np.argsort(moves)]
        _draw_cells(heat, matrices[column])
        if column == 0:
            strip.axis("off")
            continue
        i, j = pairs[column - 1]
        _draw_cells(strip, factors[column - 1].v[None])
        strip.set_xlabel(
            rf"$v = e_{i + 1} - e_{j + 1}$" + "\n" + r"$I - v\,v^{\mathsf{T}}$", fontsize=10
        )
        sign = "=" if column == 1 else r"$\cdot$"
        for axes in (wires, heat):
            axes.text(-0.18, 0.5, sign, transform=axes.transAxes, fontsize=20, ha="center",
                      va="center")  # fmt: skip
    grid[0, 0].set_title("the permutation", fontsize=10)
    for column in range(1, count):
        first = " (acts first)" if column == count - 1 else ""
        grid[0, column].set_title(f"a swap{first}", fontsize=10)
    save_figure(path, figure)


def _draw_wires(axes: Any, objects: Any, moves: Any) -> None:
    """Draw how objects move, from right to left, as vectors pass a matrix."""
    bend = np.linspace(0, 1, 40)
    for place, (thing, target) in enumerate(zip(objects, moves, strict=True)):
        height = place + (target - place) * (3 * bend**2 - 2 * bend**3)
        colour = COLOURS[thing]
        axes.plot(1 - bend, height, color=colour, lw=2, solid_capstyle="round")
        for x, y in ((1, place), (0, target)):
            axes.plot(x, y, marker="o", ms=13, color=colour)
            axes.text(x, y, str(thing + 1), color="white", fontsize=9, ha="center", va="center")
    axes.set(xlim=(-0.12, 1.12), ylim=(len(moves) - 0.5, -0.5), box_aspect=1)
    axes.axis("off")


def _draw_cells(axes: Any, matrix: Any) -> None:
    """Draw the entries -1, 0 and 1 as coloured cells with numbers."""
    axes.imshow(matrix, cmap=SIGNS, vmin=-1, vmax=1)
    rows, columns = matrix.shape
    axes.set_xticks(np.arange(columns + 1) - 0.5, [])
    axes.set_yticks(np.arange(rows + 1) - 0.5, [])
    axes.grid(color="0.8", lw=0.6)
    axes.tick_params(length=0)
    for (y, x), value in np.ndenumerate(matrix):
        if value:
            text = f"{value:g}".replace("-", "\N{MINUS SIGN}")
            axes.text(x, y, text, color="white", fontsize=9, ha="center", va="center")


def rule_names(cascade: Cascade) -> list[list[str]]:
    """Name each update rule of each level by the symbol and the old states of the levels above."""
    names: list[list[str]] = [[] for _ in range(cascade.levels[0].rules)]
    for symbol, rule in zip(cascade.dfa.alphabet, cascade.first, strict=True):
        names[rule].append(symbol)
    found = []
    for level, below in zip(cascade.levels, [*cascade.levels[1:], None], strict=True):
        found.append([", ".join(group) for group in names])
        if below is not None:
            following: list[list[str]] = [[] for _ in range(below.rules)]
            for rule, group in enumerate(names):
                for state, told in enumerate(level.out[rule]):
                    following[told] += [f"{name}{state}" for name in group]
            names = following
    return found


def draw_cascade(path: Path, cascade: Cascade, word: str) -> None:
    """Draw levels as boxes, what their update rules do, and their states on a word.

    In the rule b1 the symbol is b and the old state of level 1 is 1.
    """
    depth = len(cascade.levels)
    figure = Figure(figsize=(8.5, 1.1 * depth + 0.9), layout="constrained")
    axes = figure.subplots()
    names = rule_names(cascade)
    for i, level in enumerate(cascade.levels):
        actions = [f"{name}: {level.action(c)}" for c, name in enumerate(names[i])]
        title = f"level {i + 1}: {level.states} states"
        axes.text(LEFT, i + 1, "\n".join([title, *actions]), fontsize=9, va="center",
                  linespacing=1.4,
                  bbox={"boxstyle": "round,pad=0.5", "fc": "#eef5fa", "ec": BLUE})  # fmt: skip
    states = cascade.start[None]
    symbols = cascade.dfa.encode(word)
    for t in range(len(word) + 1):
        if t:
            axes.text(t, TOP, word[t - 1], fontsize=12, ha="center", va="center")
            old, states = states, cascade.step(states, symbols[t - 1 : t])
        for i, state in enumerate(states[0]):
            if t:
                changed = state != old[0, i]
                arrow = {"arrowstyle": "-|>", "color": BLUE if changed else "0.6", "lw": 1.2}
                axes.annotate("", (t - 0.22, i + 1), (t - 0.78, i + 1), arrowprops=arrow)
                if i:
                    told = {"arrowstyle": "-|>", "color": ORANGE, "lw": 1, "ls": "--"}
                    axes.annotate("", (t - 0.2, i + 0.8), (t - 0.8, i + 0.2), arrowprops=told)
            axes.plot(t, i + 1, marker="o", ms=17, color=COLOURS[state], zorder=3)
            axes.text(t, i + 1, str(state), color="white", fontsize=10, ha="center",
                      va="center", zorder=4)  # fmt: skip
        accepted = bool(cascade.dfa.accepting[cascade.decode(states)[0]])
        axes.text(t, depth + 1 - TOP, "in" if accepted else "not in", fontsize=9, ha="center",
                  va="center", color="black" if accepted else "0.5")  # fmt: skip
    axes.text(-0.3, 1.5, "old\nstate", fontsize=9, ha="center", va="center", color=ORANGE)
    axes.text(LEFT, TOP, "the word", fontsize=9, va="center")
    axes.text(LEFT, depth + 1 - TOP, "in the language", fontsize=9, va="center")
    axes.set(xlim=(LEFT - 0.2, len(word) + 0.5), ylim=(depth + 1.15 - TOP, TOP - 0.15))
    axes.axis("off")
    save_figure(path, figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all figures."""
    parser = argparse.ArgumentParser(prog="python -m docs.theory_figures")
    parser.add_argument("folder", type=Path, help="where theory-*.png go")
    folder = parser.parse_args(arguments).folder
    try:
        draw_states(folder / "theory-states.png")
        draw_swaps(folder / "theory-swaps.png")
        draw_cascade(folder / "theory-cascade.png", decompose(from_regex(EVEN_AB).minimal()), WORD)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
