"""The results of checks, as text and as plain values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from statetrack.config import unknown

RESULT_COLUMNS = ["check", "result", "error", "tolerance", "detail"]


class ConformanceError(AssertionError):
    """Some checks failed; the message lists them."""


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    check: str
    status: Literal["passed", "failed", "unsupported"]
    error: float | None = None
    """The measured error that is largest relative to its tolerance; None if none was measured."""
    tolerance: float | None = None
    detail: str = ""
    """Where that error was measured, what was raised, or why the check is unsupported."""

    @property
    def ratio(self) -> float:
        """The error as a multiple of its tolerance."""
        return ratio(self.error or 0.0, self.tolerance or 0.0)

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.check} {self.status}: {self.detail}"
        return (
            f"{self.check} {self.status}: error {self.error:.1e}, tolerance {self.tolerance:.1e}, "
            f"{self.detail}"
        )

    def row(self) -> list[str]:
        """The cells under `RESULT_COLUMNS`."""
        numbers = ["" if n is None else f"{n:.1e}" for n in (self.error, self.tolerance)]
        return [self.check, self.status, *numbers, self.detail]


@dataclass(frozen=True)
class Report:
    """The outcome of all checks of one layer or op."""

    title: str
    results: tuple[Result, ...]

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results of the checks that failed."""
        return tuple(r for r in self.results if r.status == "failed")

    def __getitem__(self, check: str) -> Result:
        found = {r.check: r for r in self.results}
        if check not in found:
            raise unknown("check", check, found)
        return found[check]

    def summary(self) -> str:
        """One line, e.g. "DeltaNet [0,1]: 31 passed, 1 failed, 2 unsupported"."""
        found = [r.status for r in self.results]
        counts = {status: found.count(status) for status in ("passed", "failed", "unsupported")}
        return f"{self.title}: " + ", ".join(f"{n} {status}" for status, n in counts.items() if n)

    def table(self) -> str:
        """One line per check, in columns."""
        rows = [RESULT_COLUMNS, *(r.row() for r in self.results)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)) for row in rows
        )
        return "\n".join([self.summary(), *(line.rstrip() for line in lines)])

    __str__ = table

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for JSON; an error that is not finite is null."""
        results = [asdict(r) for r in self.results]
        for r in results:
            if r["error"] is not None and not math.isfinite(r["error"]):
                r["error"] = None
        return {"title": self.title, "failed": len(self.failures), "checks": results}

    def raise_for_failures(self) -> None:
        """Raise if a check failed.

        Raises:
            ConformanceError: its message has one line for each failed check.
        """
        if self.failures:
            raise ConformanceError("\n  ".join([self.summary(), *map(str, self.failures)]))


def ratio(error: float, tolerance: float) -> float:
    """The error as a multiple of its tolerance, which may be 0; infinite for NaN."""
    if math.isnan(error):
        return math.inf
    if tolerance == 0:
        return math.inf if error else 0.0
    return error / tolerance
