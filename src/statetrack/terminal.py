"""Print text for people, JSON for programs, and progress."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from statetrack.files import check_output, write_json

UNLIMITED = 100_000  # columns
TEXT_WIDTH = 16  # of a column of texts, at least, in a table that is too wide


class Shown(Protocol):
    """The progress of a run, as `print_progress` shows it."""

    @property
    def step(self) -> int:
        """The steps so far."""

    @property
    def steps(self) -> int:
        """The steps of the whole run."""

    @property
    def text(self) -> str:
        """One line."""


def print_progress(console: PlainConsole, title: str) -> Callable[[Shown], None]:
    """Return a callback that prints a run's progress.

    In a terminal it rewrites one line; elsewhere it prints a line for every tenth of the steps.
    """
    printed = -1  # the last tenth
    width = 0  # of the longest line so far, which a shorter one must cover

    def show(p: Shown) -> None:
        nonlocal printed, width
        tenth = 10 * p.step // p.steps
        text = f"{title}: {p.text}"
        if console.is_terminal:
            width = max(width, len(text))
            end = "\n" if p.step == p.steps else "\r"
            console.print(text.ljust(width), end=end, no_wrap=True, overflow="crop")
        elif tenth > printed:
            printed = tenth
            console.print(text, soft_wrap=True)

    return show


def check_json(target: str | None) -> None:
    """Raise a UserError if the JSON file cannot be written."""
    if target is not None and target != "-":
        check_output(Path(target), "JSON ")


def write_result(target: str | None, value: Any) -> None:
    """Write what --json asks for: to a file, to standard output ("-"), or nothing."""
    if target == "-":
        sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
        sys.stdout.flush()
    elif target is not None:
        write_json(Path(target), value)


class PlainConsole(Console):
    """A console that prints texts verbatim: brackets are no markup, :names: are no emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        given = "width" in options or "COLUMNS" in os.environ
        if not (given or self.is_terminal or self.is_jupyter):
            self.width = UNLIMITED  # files and pipes have no width

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Show a spinner beside a text."""
        return _PlainStatus(_plain(status), console=self, **options)

    def on_broken_pipe(self) -> None:
        """Stop quietly with exit code 0 when the reader of a pipe (`| head`) has stopped."""
        quiet_stdout()
        raise SystemExit(0)


class _PlainStatus(Status):
    """rich's own Status reads texts as markup, whatever the console's settings."""

    def update(self, status: RenderableType | None = None, **options: Any) -> None:
        super().update(None if status is None else _plain(status), **options)


def _plain(text: RenderableType) -> RenderableType:
    return Text(text) if isinstance(text, str) else text


def quiet_stdout() -> None:
    """Discard what Python flushes to standard output when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_console(target: str | None) -> PlainConsole:
    """Return a console on standard output, or on standard error if JSON goes to the former."""
    return PlainConsole(stderr=target == "-")


def print_table(
    console: PlainConsole, title: str, columns: list[str], rows: list[list[str]]
) -> None:
    """Print a table of texts; columns of numbers are right-aligned, but for the first.

    A table wider than the console becomes several, each with the columns that name the rows.
    """
    cells = [[row[i] for row in rows] for i in range(len(columns))]
    numbers = [i > 0 and all(c[:1] in "-0123456789" for c in cells[i]) for i in range(len(columns))]
    widths = [max(map(cell_len, [name, *c])) for name, c in zip(columns, cells, strict=True)]
    parts = [list(range(len(columns)))]
    if _table_width(widths) > console.width:
        columns = list(columns)
        for i, name in enumerate(columns):
            if numbers[i]:  # only the heading is broken into lines, between words
                widths[i] = max(map(cell_len, [*name.split(), *cells[i]]))
                columns[i] = textwrap.fill(name, widths[i])
            elif i:
                widths[i] = min(widths[i], TEXT_WIDTH)
        parts = _parts(widths, _naming(rows), console.width)
    for part in parts:
        table = Table(title=title, title_justify="left")
        for i in part:
            justify: JustifyMethod = "right" if numbers[i] else "left"
            whole = i == 0 or numbers[i]
            table.add_column(columns[i], justify=justify, overflow="fold", no_wrap=whole)
        for row in rows:
            table.add_row(*(row[i] for i in part))
        console.print(table)


def _table_width(widths: list[int]) -> int:
    return sum(width + 3 for width in widths) + 1  # padding and lines


def _naming(rows: list[list[str]]) -> int:
    """Return how many of the first columns tell the rows apart; 1 if all of them do not."""
    counts = range(1, len(rows[0])) if rows else ()
    return next((n for n in counts if len({tuple(row[:n]) for row in rows}) == len(rows)), 1)


def _parts(widths: list[int], naming: int, width: int) -> list[list[int]]:
    """Distribute columns over tables that fit; the first `naming` columns are in all of them."""
    parts = [list(range(naming))]
    for i in range(naming, len(widths)):
        if len(parts[-1]) > naming and _table_width([widths[j] for j in [*parts[-1], i]]) > width:
            parts.append(list(range(naming)))
        parts[-1].append(i)
    return parts
