"""Time calls on a device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from statetrack.selftest.outcome import first_line
from statetrack.testing.case import tensors, worst

OURS = "statetrack"  # with the backend that "auto" takes
TIMING_COLUMNS = ["work", "implementation", "ms", "ratio", "error"]
# Does the work once and returns its results: outputs, or outputs and gradients.
Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """How long one candidate takes."""

    work: str
    implementation: str
    milliseconds: float | None  # the median of the rounds; None if it could not be timed
    ratio: float | None = None  # its time / that of `OURS`
    error: float | None = None  # of its results, relative to those of `OURS`
    detail: str = ""  # why there is no time

    def row(self) -> list[str]:
        """The cells under `TIMING_COLUMNS`."""
        if self.milliseconds is None:
            return [self.work, self.implementation, "not timed", "", ""]
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}x"
        error = "" if self.error is None else f"{self.error:.1e}"
        return [self.work, self.implementation, f"{self.milliseconds:.3g}", ratio, error]

    def as_json(self) -> dict[str, Any]:
        """Return plain values; an error that is not finite is None, as JSON has no other word."""
        finite = self.error is None or math.isfinite(self.error)
        return asdict(self) | ({} if finite else {"error": None, "detail": "not finite"})


def time_candidates(
    work: str,
    candidates: Mapping[str, Callable[[], Call]],
    device: torch.device,
    rounds: int,
    comparable: bool = True,
) -> Iterator[Timing]:
    """Time candidates for the same work one after the other, `OURS` first.

    Args:
        work: what is computed, in words.
        candidates: by name, functions that prepare the work, and return what is timed.
        device: where it runs.
        rounds: how often each call is timed, after two calls that are not.
        comparable: whether all get the same numbers, so that results can be compared.
    """
    ours: float | None = None
    expected: list[Tensor] | None = None
    for implementation, prepare in candidates.items():
        try:
            found, seconds = _measure(prepare(), device, rounds)
            distance = worst(found, expected) if comparable and expected is not None else None
        except Exception as error:  # a missing or failing package must not end the self-test
            yield Timing(work, implementation, None, detail=first_line(error))
            continue
        if implementation == OURS:
            ours, expected = seconds, found
        ratio = None if ours is None or implementation == OURS else seconds / ours
        yield Timing(work, implementation, 1e3 * seconds, ratio, distance)


def differentiated(run: Callable[..., Any], inputs: Mapping[str, Tensor]) -> Call:
    """Return a call of the outputs of `run`, and the gradients of their sum by all inputs."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}

    def call() -> list[Tensor]:
        output = tensors(run(**leaves))[0]
        return [output, *torch.autograd.grad(output.sum(), list(leaves.values()))]

    return call


def _measure(call: Call, device: torch.device, rounds: int) -> tuple[list[Tensor], float]:
    """Return the results of a call, on the CPU, and the seconds that it takes."""
    found = [x.detach().cpu() for x in tensors(call())]
    call()
    _wait(device)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - began)
    return found, median(times)


def _wait(device: torch.device) -> None:
    """Wait until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
