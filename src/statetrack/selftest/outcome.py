"""What the self-test found out about one op or layer."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from statetrack.testing.report import Result

COLUMNS = ["what", "backend", "dtype", "result", "error", "tolerance"]


@dataclass(frozen=True)
class Outcome:
    """The results of an op or layer with one backend and dtype, each at one size."""

    kind: Literal["op", "layer"]
    subject: str
    backend: str
    dtype: str
    results: tuple[Result, ...]

    @property
    def status(self) -> str:
        """Failed if anything did, unsupported if nothing could be run, else passed."""
        found = {result.status for result in self.results}
        return next(s for s in ("failed", "passed", "unsupported") if s in found)

    @property
    def worst(self) -> Result:
        """The result that the status stands for."""
        own = [result for result in self.results if result.status == self.status]
        return max(own, key=lambda result: (result.error is None, result.ratio))

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.subject}, {self.backend}, {self.dtype}"

    def row(self) -> list[str]:
        """The cells under `COLUMNS`."""
        shown = {"unsupported": "not run"}.get(self.status, self.status)
        _, _, error, tolerance, _ = self.worst.row()
        return [self.subject, self.backend, self.dtype, shown, error, tolerance]

    def as_json(self) -> dict[str, Any]:
        """Return plain values; an error that is not finite is null."""
        results = [asdict(result) for result in self.results]
        for result in results:
            if result["error"] is not None and not math.isfinite(result["error"]):
                result["error"] = None
        names = {name: getattr(self, name) for name in ("kind", "subject", "backend", "dtype")}
        return {**names, "status": self.status, "results": results}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module."""
    return str(dtype).removeprefix("torch.")


def first_line(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
