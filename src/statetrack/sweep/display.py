"""Show the progress of jobs: in one live table, or in plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import JustifyMethod
from rich.live import Live
from rich.table import Table

from statetrack.sweep.pool import Event
from statetrack.terminal import PlainConsole, progress_text
from statetrack.training import Progress


class Display:
    """Show every job's step, loss, accuracy and time left. Use it as a context manager."""

    def __init__(self, titles: Sequence[str], console: PlainConsole) -> None:
        self.titles = titles
        self.console = console
        self.latest: dict[int, Progress] = {}
        self.status = ["waiting"] * len(titles)
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.began = time.perf_counter()
        self.printed: dict[int, int] = {}  # the last quarter of each job that has a plain line

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def show(self, event: Event) -> None:
        """Update the display for an event of a job."""
        if event.kind == "start":
            self.status[event.job] = "training"
        elif event.kind == "progress":
            self.latest[event.job] = event.value
            if event.value.step == event.value.steps:
                self.status[event.job] = "measuring"
        else:
            self.status[event.job] = f"score {event.value['score']:.3f}"
        if self.console.is_terminal:
            self.live.update(self._table(), refresh=True)
        else:
            self._line(event)

    def _table(self) -> Table:
        done = sum(status.startswith("score") for status in self.status)
        clock = f"{time.perf_counter() - self.began:.0f} s, {done} of {len(self.titles)} done"
        table = Table(title=clock, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
        for name in ("model", "step", "loss", "accuracy", "left", ""):
            justify: JustifyMethod = "left" if name in ("model", "") else "right"
            table.add_column(name, justify=justify, no_wrap=True)
        for job, title in enumerate(self.titles):
            p = self.latest.get(job)
            if p is None:
                table.add_row(title, "", "", "", "", self.status[job])
                continue
            left = f"{p.seconds_left:.0f} s" if p.step < p.steps else ""
            step = f"{p.step}/{p.steps}"
            numbers = (step, f"{p.loss:.4f}", f"{p.accuracy:.3f}", left)
            table.add_row(title, *numbers, self.status[job])
        return table

    def _line(self, event: Event) -> None:
        text = self.status[event.job]
        if event.kind == "progress":
            p = event.value
            quarter = 4 * p.step // p.steps
            if quarter <= self.printed.get(event.job, 0):
                return
            self.printed[event.job] = quarter
            text = progress_text(p)
        clock = f"[{time.perf_counter() - self.began:5.0f} s]"
        self.console.print(f"{clock} {self.titles[event.job]}: {text}", soft_wrap=True)
