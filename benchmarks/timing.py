"""Compare results before they are timed, time calls and read a process's peak memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Relative, in the 2-norm. Rounding gives up to 1e-5, a wrong formula 1e-2 and more.
TOLERANCE = 2e-4
MEMORY = 2**28  # bytes
SGEMM = 1024  # size of the product whose rate is the yardstick

Tensors = dict[str, Tensor]
Progress = Callable[[str], None]


class WrongResultError(Exception):
    """A candidate computes something else: its time would mean nothing."""


def compare(who: str, found: Tensors, expected: Tensors) -> None:
    """Raise a WrongResultError unless every tensor of a result is as expected."""
    if found.keys() != expected.keys():
        raise WrongResultError(f"{who} gives {sorted(found)}, not {sorted(expected)}")
    for name, right in expected.items():
        actual, right = found[name].double(), right.double()
        if actual.shape != right.shape:
            raise WrongResultError(f"{who}: {name} has the shape {list(actual.shape)}")
        distance = float((actual - right).norm() / right.norm().clamp(min=1e-2))
        if not distance <= TOLERANCE:
            raise WrongResultError(f"{who}: {name} is off by {distance:.1e}")


def seconds(call: Callable[[], Any]) -> float:
    """Time a call, including the freeing of its results."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def reading() -> float:
    """Measure the bytes per second read from memory, on more data than caches hold."""
    x = torch.ones(MEMORY // 4)
    return MEMORY / min(seconds(x.sum) for _ in range(5))


def sgemm() -> Callable[[], Tensor]:
    """Return a call that multiplies two square float32 matrices into a third."""
    a, b, out = (torch.ones(SGEMM, SGEMM) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def peak_memory() -> int:
    """Return the most bytes that this process has had in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
