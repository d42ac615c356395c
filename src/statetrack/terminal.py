"""What the commands have in common: text for people, JSON for programs, progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from statetrack.files import check_output, write_json

if TYPE_CHECKING:
    from statetrack.training import Progress

Json = Annotated[
    str | None, tyro.conf.arg(metavar="FILE|-", help="write the result as JSON; - for stdout")
]


def print_progress(console: Console, title: str) -> Callable[[Progress], None]:
    """A callback that shows one run's progress on one line, or in lines without a terminal."""
    said = -1
    width = 0  # of the longest line so far, which a shorter one must cover

    def show(p: Progress) -> None:
        nonlocal said, width
        tenth = 10 * p.step // p.steps
        text = (
            f"{title}: step {p.step}/{p.steps}, loss {p.loss:.4f}, accuracy {p.accuracy:.3f}, "
            f"{p.seconds_left:.0f} s left"
        )
        if console.is_terminal:
            width = max(width, len(text))
            end = "\n" if p.step == p.steps else "\r"
            console.print(text.ljust(width), end=end, markup=False, no_wrap=True, overflow="crop")
        elif tenth > said:
            said = tenth
            console.print(text, markup=False, soft_wrap=True)

    return show


def check_json(target: str | None) -> None:
    """Refuse a JSON file that could not be written, before any work is done."""
    if target is not None and target != "-":
        check_output(Path(target), "JSON ")


def write_result(target: str | None, value: Any) -> None:
    """What --json asks for: to a file, to standard output, or nothing."""
    if target == "-":
        sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
        sys.stdout.flush()
    elif target is not None:
        write_json(Path(target), value)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader has seen enough (`| head`): stop quietly, as after a success."""
        quiet_stdout()
        raise SystemExit(0)


def quiet_stdout() -> None:
    """Let what Python flushes to standard output at its end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_console(target: str | None) -> Console:
    """Where text for people goes: standard output, unless JSON is going there."""
    return _Console(stderr=target == "-", highlight=False)


def print_table(console: Console, title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table of texts; columns of numbers are right-aligned, but for the first."""
    table = Table(title=escape(title), title_justify="left")
    for i, column in enumerate(columns):
        numbers = all(row[i][:1] in "-0123456789" for row in rows)
        justify: JustifyMethod = "right" if i and numbers else "left"
        table.add_column(escape(column), justify=justify, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
