"""Show the progress of jobs: in a terminal as a live table, elsewhere as lines."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rich import box
from rich.console import Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from statetrack.sweep.engine import SweepEvent
from statetrack.sweep.job import SweepJob
from statetrack.sweep.pool import cores
from statetrack.sweep.status import result_text
from statetrack.terminal import PlainConsole


class SweepDisplay:
    """Show the running jobs of a sweep, and a line for each that ends. A context manager."""

    def __init__(self, console: PlainConsole, workers: int | None = None) -> None:
        self.console = console
        self.workers = workers or cores()
        self.status: dict[str, str] = {}  # by job: the last kind of event
        self.jobs: dict[str, SweepJob] = {}
        self.latest: dict[str, Any] = {}  # progress of training
        self.spent: dict[str, float] = {}  # CPU seconds of jobs that ended here
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.began = time.perf_counter()

    def __enter__(self) -> SweepDisplay:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def __call__(self, event: SweepEvent) -> None:
        """Show an event; pass the display as `on_event`."""
        key = event.job.key
        ended_before = self.status.get(key) == "listed"  # before this sweep began
        self.status[key] = event.kind
        self.jobs[key] = event.job
        if event.kind == "progress":
            self.latest[key] = event.value
        elif event.kind in ("done", "failed", "died", "busy") and not ended_before:
            self.latest.pop(key, None)
            if event.value is not None:
                self.spent[key] = event.value["cpu_seconds"]
            self.console.print(f"{self._time_and_counts()} {event.job.name}: {_end_text(event)}")
        if self.console.is_terminal:
            self.live.update(self._live_view(), refresh=True)

    def _time_and_counts(self) -> str:
        counts = Counter(self.status.values())
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        done = f"{counts['done']}/{len(self.jobs)} done"
        return f"[{time.perf_counter() - self.began:5.0f} s, {done}{failed}]"

    def seconds_left(self) -> float | None:
        """Estimate from the jobs that ended how long the others take; None if none has ended."""
        expected = sum(self.jobs[key].seconds for key in self.spent)
        if not expected:
            return None
        ended = ("done", "failed")
        left = sum(job.seconds for key, job in self.jobs.items() if self.status[key] not in ended)
        return left * sum(self.spent.values()) / expected / self.workers

    def _live_view(self) -> Group:
        left = self.seconds_left()
        title = self._time_and_counts() + ("" if left is None else f" about {left:.0f} s left")
        table = _progress_table()
        running = {key for key, kind in self.status.items() if kind in ("start", "progress")}
        for key in list(running)[: max(1, self.console.height - 6)]:
            p, name = self.latest.get(key), self.jobs[key].name
            table.add_row(name, *_progress_cells(p), "" if p else "starting")
        # outside the table, whose own title would wrap at its width
        return Group(Text(title), table)


def _end_text(event: SweepEvent) -> str:
    if event.kind == "busy":
        return "running in another process"
    if event.kind == "died":
        return f"{event.error}; trying again"
    if event.value is None:
        return f"failed: {event.error}"
    return f"{'failed: ' if event.kind == 'failed' else ''}{result_text(event.value)}"


def _progress_table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("model", "step", "loss", "accuracy", "left", ""):
        justify: JustifyMethod = "left" if name in ("model", "") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    return table


def _progress_cells(p: Any) -> tuple[str, str, str, str]:
    if p is None:
        return "", "", "", ""
    left = f"{p.seconds_left:.0f} s" if p.step < p.steps else ""
    accuracy = getattr(p, "accuracy", None)  # language models have none
    shown = "" if accuracy is None else f"{accuracy:.3f}"
    return f"{p.step}/{p.steps}", f"{p.loss:.4f}", shown, left
