"""How a set of jobs looks while it runs: one live table, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import JustifyMethod
from rich.live import Live
from rich.table import Table

from statetrack.sweep.pool import Event
from statetrack.terminal import PlainConsole
from statetrack.training import Progress


class Display:
    """Shows every job's step, loss, accuracy and time left. Use as a context manager."""

    def __init__(self, titles: Sequence[str], console: PlainConsole) -> None:
        self.titles = titles
        self.console = console
        self.latest: dict[int, Progress] = {}
        self.status = ["waiting"] * len(titles)
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.began = time.perf_counter()
        self.said: dict[int, int] = {}  # quarters of each job that plain lines have told of

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
        """Take in news of a job."""
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
            if quarter <= self.said.get(event.job, 0):
                return
            self.said[event.job] = quarter
            text = (
                f"step {p.step}/{p.steps}, loss {p.loss:.4f}, accuracy {p.accuracy:.3f}, "
                f"{p.seconds_left:.0f} s left"
            )
        clock = f"[{time.perf_counter() - self.began:5.0f} s]"
        line = f"{clock} {self.titles[event.job]}: {text}"
        self.console.print(line, soft_wrap=True)
