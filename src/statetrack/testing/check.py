"""`Check`, one property of a layer or op, and the decorators that make one from a function."""

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

    where: str  # what was compared, for the report
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """The error as a multiple of its tolerance."""
        return ratio(self.error, self.tolerance)


Run = Callable[[Any], Iterator[Measured]]


@dataclass(frozen=True)
class Check:
    """A property of a layer or op.

    It passes if `run` raises nothing and no error that `run` yields exceeds its tolerance; `run`
    must yield at least one.
    """

    name: str
    about: str  # what must hold, as docs/conformance.md says it
    run: Run  # takes a Case (layers) or an OpCase (ops)
    slow: bool = False  # whether it traces or compiles the layer, which takes long

    def __call__(self, subject: Any) -> Result:
        """Run the check; the result has the worst measured error, or what was raised."""
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
    """Decorator: a check of a layer, run in its exact dtype and in float32 (`Case.dtypes`).

    The docstring of the function becomes `about`, so it says what must hold.
    """

    def in_each_dtype(case: Any) -> Iterator[Measured]:
        for dtype in case.dtypes:
            for measured in run(case.at(dtype)):
                yield measured._replace(where=f"{measured.where}, {dtype}")

    return Check(run.__name__, _about(run), in_each_dtype)


def float32_check(run: Run, slow: bool = False) -> Check:
    """Decorator: a check of a layer, run once, on a float32 case, as fast kernels compute.

    A check that should run once in the exact dtype instead takes `case.at()`.
    """
    return Check(run.__name__, _about(run), lambda case: run(case.at(torch.float32)), slow)


def slow_check(run: Run) -> Check:
    """Decorator: a float32 check that traces or compiles the layer, which takes long."""
    return float32_check(run, slow=True)


def op_check(run: Run) -> Check:
    """Decorator: a check of an op, run once, in the dtype of its OpCase."""
    return Check(run.__name__, _about(run), run)


def _about(run: Run) -> str:
    return " ".join((inspect.getdoc(run) or "").split())
