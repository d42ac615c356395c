"""Print text for people, JSON for programs, and progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, JustifyMethod, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from statetrack.files import check_output, write_json

if TYPE_CHECKING:
    from statetrack.training import Progress


def progress_text(p: Progress) -> str:
    """Return step, loss, accuracy and the time left."""
    numbers = f"loss {p.loss:.4f}, accuracy {p.accuracy:.3f}"
    return f"step {p.step}/{p.steps}, {numbers}, {p.seconds_left:.0f} s left"


def print_progress(console: PlainConsole, title: str) -> Callable[[Progress], None]:
    """Return a callback that prints a run's progress.

    In a terminal it rewrites one line; elsewhere it prints a line for every tenth of the steps.
    """
    printed = -1  # the last tenth
    width = 0  # of the longest line so far, which a shorter one must cover

    def show(p: Progress) -> None:
        nonlocal printed, width
        tenth = 10 * p.step // p.steps
        text = f"{title}: {progress_text(p)}"
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
    """Print a table of texts; columns of numbers are right-aligned, but for the first."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        numbers = all(row[i][:1] in "-0123456789" for row in rows)
        justify: JustifyMethod = "right" if i and numbers else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)
