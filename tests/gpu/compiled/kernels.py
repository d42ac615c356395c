"""Small Triton kernels to try the compiler with."""

from __future__ import annotations

import triton
import triton.language as tl

from statetrack.kernels.gpu import KernelExample


@triton.jit
def running_sum(x, y, T, factor, N: tl.constexpr, SQUARED: tl.constexpr):
    """y_t = the sum of all x up to t, times a factor, for x [programs, T, N]."""
    here = tl.program_id(0).to(tl.int64) * T * N + tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for _ in range(T):
        values = tl.load(x + here)
        total += values * values if SQUARED else values
        tl.store(y + here, total * factor)
        here += N


@triton.jit
def exchanged(x, places, N: tl.constexpr):
    """x = x[places] for x [N], with all of x in shared memory."""
    here = tl.arange(0, N)
    values = tl.gather(tl.load(x + here), tl.load(places + here), 0)
    tl.store(x + here, values)


@triton.jit
def broken(x, N: tl.constexpr):
    """Blocks of Triton must have a power of 2 of elements."""
    tl.store(x + tl.arange(0, N + 1), 0.0)


SUM = KernelExample(
    "running sum",
    running_sum,
    {"x": "*fp32", "y": "*fp32", "T": "i32", "factor": "fp32", "N": 128, "SQUARED": True},
    num_warps=4,
    size="B 256, T 2048, D 128",
    flops=3 * 256 * 2048 * 128,
    bytes=8 * 256 * 2048 * 128,
    programs=256,
)
# 128 KiB of shared memory
LARGE = KernelExample(
    "exchanged", exchanged, {"x": "*fp32", "places": "*i32", "N": 32768}, 16, "D 32768", 1, 4e5, 1
)
BROKEN = KernelExample("broken", broken, {"x": "*fp32", "N": 8}, 1, "D 9", 1e6, 1e6, 1)
