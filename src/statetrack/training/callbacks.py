"""Callbacks: what a run calls at its start, for every row of metrics and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statetrack.training.run_folder import Run


class Callback:
    """Base of callbacks, which does nothing. An exception in a callback ends the run."""

    def on_start(self, run: Run) -> None:
        """Called before the first step, also of a resumed run."""

    def on_row(self, run: Run, row: dict[str, Any]) -> None:
        """Called with each row, after it was written to metrics.jsonl."""

    def on_end(self, run: Run) -> None:
        """Called when the run has ended, also by an error or Ctrl-C."""
