"""Check, then time: candidates take turns in one process, and the least time counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.ops.candidates import Call, Candidate, Row, Tensors

# Relative, in the 2-norm. Rounding gives up to 1e-5, a wrong formula 1e-2 and more.
TOLERANCE = 2e-4
TURNS = 3  # to choose a chunk size
SGEMM = 1024  # size of the product whose rate is the yardstick

Progress = Callable[[str], None]


class WrongResultError(Exception):
    """A candidate does not compute what the row says: its time would mean nothing."""


def compare(who: str, found: Tensors, expected: Tensors) -> None:
    """Check every tensor of a result."""
    if found.keys() != expected.keys():
        raise WrongResultError(f"{who} gives {sorted(found)}, not {sorted(expected)}")
    for name, right in expected.items():
        actual, right = found[name].double(), right.double()
        if actual.shape != right.shape:
            raise WrongResultError(f"{who}: {name} has the shape {list(actual.shape)}")
        distance = float((actual - right).norm() / right.norm().clamp(min=1e-2))
        if not distance <= TOLERANCE:
            raise WrongResultError(f"{who}: {name} is off by {distance:.1e}")


def check_small(row: Row, candidates: list[Candidate]) -> None:
    """Every candidate at every chunk size against the definition in float64."""
    inputs = row.inputs(True)
    expected = row.oracle(inputs, None)()
    for candidate in candidates:
        for chunk in candidate.chunks:
            found = candidate.prepare(single(inputs), chunk)()
            compare(_title(candidate, chunk), found, expected)


def measure(row: Row, candidates: list[Candidate], rounds: int, say: Progress) -> dict[str, Any]:
    """Times in seconds; `candidates` begins with ours. Everything is checked first."""
    say("checking against the definition")
    check_small(row, candidates)
    inputs = single(row.inputs(False))
    expected: Tensors = {}
    chosen: list[tuple[Candidate, int | None, Call]] = []
    tried: dict[str, dict[str, float]] = {}
    for candidate in candidates:
        calls = {chunk: candidate.prepare(inputs, chunk) for chunk in candidate.chunks}
        for chunk, call in calls.items():
            say(f"checking {_title(candidate, chunk)} at full size")
            found = call()
            if expected:
                compare(_title(candidate, chunk), found, expected)
            else:
                expected = {name: x.clone() for name, x in found.items()}
            del found
        times = dict.fromkeys(calls, float("inf"))
        if len(calls) > 1:
            for _ in range(TURNS):
                times = {chunk: min(times[chunk], seconds(calls[chunk])) for chunk in calls}
            tried[candidate.name] = {str(chunk): t for chunk, t in times.items()}
        best = min(times, key=times.__getitem__)
        chosen.append((candidate, best, calls[best]))
    del expected, calls

    product = sgemm()
    least = [float("inf")] * len(chosen)
    least_product = float("inf")
    for done in range(rounds):
        say(f"round {done + 1} of {rounds}")
        for i, (_, _, call) in enumerate(chosen):
            least[i] = min(least[i], seconds(call))
        least_product = min(least_product, seconds(product))
    return {
        "sgemm": 2 * SGEMM**3 / least_product,
        "candidates": [
            {"name": c.name, "chunk": chunk, "seconds": t, "tried": tried.get(c.name, {})}
            for (c, chunk, _), t in zip(chosen, least, strict=True)
        ],
    }


def single(inputs: Tensors) -> Tensors:
    """The inputs in float32."""
    return {name: x.float() for name, x in inputs.items()}


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes, its results freed within."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def sgemm() -> Callable[[], Tensor]:
    """A product of two square float32 matrices into a third."""
    a, b, out = (torch.ones(SGEMM, SGEMM) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _title(candidate: Candidate, chunk: int | None) -> str:
    return candidate.name if chunk is None else f"{candidate.name} in chunks of {chunk}"
