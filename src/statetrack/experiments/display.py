"""How a set of jobs looks while it runs: one live table, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from statetrack.experiments.pool import Event
from statetrack.training import Progress


class Display:
    """Shows every job's step, loss, accuracy and time left. Use as a context manager."""

    def __init__(self, titles: Sequence[str], console: Console) -> None:
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
        table = Table(title=clock, title_justify="left")
        for name in ("model", "progress", "step", "loss", "accuracy", "left", ""):
            table.add_column(name, justify="left" if name in ("model", "progress", "") else "right")
        for job, title in enumerate(self.titles):
            p = self.latest.get(job)
            if p is None:
                table.add_row(title, "", "", "", "", "", self.status[job])
                continue
            bar = ProgressBar(total=p.steps, completed=p.step, width=16)
            left = f"{p.seconds_left:.0f} s" if p.step < p.steps else ""
            table.add_row(
                title, bar, f"{p.step}/{p.steps}", f"{p.loss:.4f}", f"{p.accuracy:.3f}", left,
                self.status[job],
            )  # fmt: skip
        return table

    def _line(self, event: Event) -> None:
        clock = f"[{time.perf_counter() - self.began:5.0f} s]"
        title = self.titles[event.job]
        if event.kind == "done":
            self.console.print(f"{clock} {title}: {self.status[event.job]}", markup=False)
        elif event.kind == "progress":
            p = event.value
            quarter = 4 * p.step // p.steps
            if quarter > self.said.get(event.job, 0):
                self.said[event.job] = quarter
                self.console.print(
                    f"{clock} {title}: step {p.step}/{p.steps}, loss {p.loss:.4f}, "
                    f"accuracy {p.accuracy:.3f}, {p.seconds_left:.0f} s left",
                    markup=False,
                )
