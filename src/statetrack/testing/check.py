"""What a check is, and how it becomes a result."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from statetrack.testing.report import Result, ratio


class Measured(NamedTuple):
    """An error that a check measured, and the largest one that passes."""

    where: str
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """The error as a multiple of its tolerance."""
        return ratio(self.error, self.tolerance)


@dataclass(frozen=True)
class Check:
    """A property that holds or does not. `run` measures errors of what it is given, or raises."""

    name: str
    about: str
    run: Callable[[Any], Iterator[Measured]]
    slow: bool = False
    """Whether it takes long, as it traces or compiles the layer."""

    def __call__(self, subject: Any) -> Result:
        """Run the check: the worst measured error, or what was raised."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of torch's own modules, for instance
                worst = max(self.run(subject), key=lambda measured: measured.ratio)
        except Exception as error:  # whatever the code under test raises is a result
            lines = str(error).strip().splitlines() or [""]
            return Result(self.name, "failed", detail=f"{type(error).__name__}: {lines[0]}")
        return Result(
            self.name,
            "passed" if worst.ratio <= 1 else "failed",
            worst.error,
            worst.tolerance,
            worst.where,
        )


def check(run: Callable[[Any], Iterator[Measured]]) -> Check:
    """Decorator: the check of that name; its docstring says what must hold."""
    return Check(run.__name__, _about(run), run)


def slow_check(run: Callable[[Any], Iterator[Measured]]) -> Check:
    """Decorator: a check that takes long."""
    return Check(run.__name__, _about(run), run, slow=True)


def _about(run: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(run) or "").split())
