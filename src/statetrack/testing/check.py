"""What a check is, and how it becomes a result."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

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


Run = Callable[[Any], Iterator[Measured]]


@dataclass(frozen=True)
class Check:
    """A property that holds or does not: `run` yields measured errors, or raises."""

    name: str
    about: str
    run: Run
    slow: bool = False  # it traces or compiles the layer

    def __call__(self, subject: Any) -> Result:
        """Run the check: the worst measured error, or what was raised."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # for example those of torch's own modules
                worst = max(self.run(subject), key=lambda measured: measured.ratio)
        except Exception as error:  # whatever the code under test raises is a result
            lines = str(error).strip().splitlines() or [""]
            return Result(self.name, "failed", detail=f"{type(error).__name__}: {lines[0]}")
        failed = worst.ratio > 1
        measured = worst.error, worst.tolerance, worst.where
        return Result(self.name, "failed" if failed else "passed", *measured)


def check(run: Run) -> Check:
    """Decorator: a check of a layer in each of its dtypes; the docstring says what must hold."""

    def in_each_dtype(case: Any) -> Iterator[Measured]:
        for dtype in case.dtypes:
            for measured in run(case.at(dtype)):
                yield measured._replace(where=f"{measured.where}, {dtype}")

    return Check(run.__name__, _about(run), in_each_dtype)


def float32_check(run: Run, slow: bool = False) -> Check:
    """Decorator: a check of a layer in float32, as fast kernels run."""
    return Check(run.__name__, _about(run), lambda case: run(case.at(torch.float32)), slow)


def slow_check(run: Run) -> Check:
    """Decorator: a check in float32 that takes long."""
    return float32_check(run, slow=True)


def op_check(run: Run) -> Check:
    """Decorator: a check of an op."""
    return Check(run.__name__, _about(run), run)


def _about(run: Run) -> str:
    return " ".join((inspect.getdoc(run) or "").split())
