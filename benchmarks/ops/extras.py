"""What is no comparison with a peer: the two ranges, two threads, and time and memory by length."""

from __future__ import annotations

import ctypes
import gc
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.ops.candidates import Call
from benchmarks.ops.measure import check_small, measure, single
from benchmarks.ops.rows import ROWS, delta_rule_flops, long_rows
from benchmarks.timing import SGEMM, Progress, Tensors, compare, seconds, sgemm

LENGTHS = tuple(2**n for n in range(9, 18))  # 512 .. 131,072
PEER_LENGTH = 8192  # what the others keep for their backward pass would fill the memory beyond


def ranges(environment: str | None, rounds: int, say: Progress) -> dict[str, Any]:
    """The selective scan with eigenvalues in [-1,1] and in [0,1], in turns."""
    calls = {}
    for name in ("selective-scan-negative", "selective-scan"):
        row = ROWS[name]
        measure(row, [row.candidates[0]], 1, say)  # checks it
        calls[name] = row.candidates[0].prepare(single(row.inputs(False)), None)
    least = _turns(calls, rounds, say)
    return {"seconds": least, "ratio": least["selective-scan-negative"] / least["selective-scan"]}


def threads(environment: str | None, rounds: int, say: Progress) -> dict[str, Any]:
    """One thread against two, in turns: forward and backward of the delta rule, and sgemm."""
    calls: dict[str, Call] = {}
    for name in ("delta-rule-short", "delta-rule-long"):
        row = ROWS[name]
        measure(row, [row.candidates[0]], 1, say)
        calls[name] = row.candidates[0].prepare(single(row.inputs(False)), None)
    calls["sgemm"] = sgemm()  # type: ignore[assignment]
    before = torch.get_num_threads()
    least = {count: dict.fromkeys(calls, float("inf")) for count in (1, 2)}
    for done in range(rounds):
        say(f"round {done + 1} of {rounds}")
        for name, call in calls.items():
            for count in (1, 2):
                torch.set_num_threads(count)
                least[count][name] = min(least[count][name], seconds(call))
    torch.set_num_threads(before)
    return {
        "seconds": {str(count): times for count, times in least.items()},
        "speedup": {name: least[1][name] / least[2][name] for name in calls},
    }


def long(environment: str | None, rounds: int, say: Progress) -> dict[str, Any]:
    """Time per token of the delta rule, B1 H8 d64, at 131,072 tokens and at 2,048, in turns."""
    check_small(ROWS["delta-rule-long"], list(ROWS["delta-rule-long"].candidates[:1]))
    short, tokens = 2048, 131072
    calls: dict[str, Call] = {}
    for length in (short, tokens):
        inputs, (ours, *_) = long_rows(length, None)
        call = ours.prepare(single(inputs), None)
        # as many tokens in each turn, so that what else the machine does falls on both alike
        calls[str(length)] = partial(_repeat, call, tokens // length)
    per_token = {length: t / tokens for length, t in _turns(calls, rounds, say).items()}
    return {"seconds per token": per_token, "ratio": per_token["131072"] / per_token["2048"]}


def lengths(environment: str | None, rounds: int, say: Progress) -> dict[str, Any]:
    """Forward and backward of the delta rule, B1 H8 d64, at every length: time and memory."""
    points = []
    product = sgemm()
    for length in LENGTHS:
        inputs, candidates = long_rows(length, environment)
        if length > PEER_LENGTH:
            candidates = candidates[:1]
        if length == LENGTHS[0]:
            check_small(ROWS["delta-rule-long"], candidates)
        inputs = single(inputs)
        expected: Tensors = {}
        for candidate in candidates:
            say(f"{candidate.name} at {length}")
            call = candidate.prepare(inputs, candidate.chunks[0])
            if len(candidates) > 1:
                expected = expected or call()
                compare(candidate.name, call(), expected)
            extra = peak_memory(call)
            turns = max(3, min(rounds, 4 * 2048 * rounds // length))
            rate = 2 * SGEMM**3 / min(seconds(product) for _ in range(3))
            best = min(seconds(call) for _ in range(turns))
            points.append(
                {
                    "name": candidate.name,
                    "length": length,
                    "seconds": best,
                    "seconds per token": best / length,
                    "peak bytes": extra,
                    "share": delta_rule_flops(length, 8, 64, 64) / best / rate,
                    "limit bytes": memory_limit(length, 8, 64),
                }
            )
            del call
    return {"points": points}


def memory_limit(length: int, heads: int, size: int) -> int:
    """What forward and backward may need: gradients as large as the inputs, o, one residual."""
    vectors = 3 + 1 + 1  # dq, dk, dv; o; the residual
    states = 2 * heads * size * size  # the final one and the gradient of the first
    return 4 * (length * heads * (vectors * size + 1) + states)


def peak_memory(call: Call) -> int | None:
    """Bytes that a call needs at most beyond what the process holds; None where Linux is not."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    small = call()  # loads what is loaded once
    del small
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    kept = call()
    peak = _status("VmHWM")
    del kept
    return max(0, peak - before)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc/self/status")


def _repeat(call: Call, count: int) -> Tensors:
    for _ in range(count):
        found = call()
    return found


def _turns(calls: dict[str, Call], rounds: int, say: Progress) -> dict[str, float]:
    least = dict.fromkeys(calls, float("inf"))
    for done in range(rounds):
        say(f"round {done + 1} of {rounds}")
        for name, call in calls.items():
            least[name] = min(least[name], seconds(call))
    return least


EXTRAS = {"ranges": ranges, "threads": threads, "long": long, "lengths": lengths}
# where they run besides here, for the peers in them
EXTRA_ENVIRONMENTS: dict[str, list[str]] = {name: [] for name in EXTRAS}
EXTRA_ENVIRONMENTS["lengths"] = ["fla", "hf"]
