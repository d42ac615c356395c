"""Check, then time: candidates take turns in one process, and the least time counts."""

from __future__ import annotations

from typing import Any

from benchmarks.ops.candidates import Call, Candidate, Row
from benchmarks.timing import SGEMM, Progress, Tensors, compare, seconds, sgemm

TURNS = 3  # to choose a chunk size


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


def _title(candidate: Candidate, chunk: int | None) -> str:
    return candidate.name if chunk is None else f"{candidate.name} in chunks of {chunk}"
