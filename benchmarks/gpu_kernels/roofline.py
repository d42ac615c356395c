"""Estimate how long a kernel takes on a GPU that is not there: its roofline and its occupancy."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu_kernels.compiled import KIB, Resources
from statetrack.kernels.gpu import KernelExample


@dataclass(frozen=True)
class GPU:
    """The figures of a GPU that estimates use."""

    name: str
    target: str  # of `compiled.TARGETS`
    peak: float  # flops per second in float32, of the vector units
    bandwidth: float  # bytes per second of its memory
    multiprocessors: int  # SMs, compute units at AMD
    schedulers: int  # per multiprocessor, each with its own registers
    registers: int  # 32-bit registers of a scheduler
    register_unit: int  # registers are given to a warp in multiples of this
    warp_size: int
    warps: int  # that a scheduler can hold
    blocks: int  # that a multiprocessor can hold
    shared: int  # bytes of shared memory of a multiprocessor
    reserved: int  # of them, taken by the system for each block


# Peaks and bandwidths: NVIDIA's data sheets of A100 80GB SXM and H100 SXM, AMD's of MI300X (whose
# peak needs packed float32 instructions). Warps, blocks, registers and shared memory: "Occupancy"
# in NVIDIA's tuning guides for Ampere and Hopper, a warp's registers in units of 256; AMD's "GPU
# hardware specifications" (304 compute units, each with 512 KiB of vector registers and 64 KiB of
# LDS) and LLVM's guide to AMDGPU (8 waves per SIMD, a lane's registers in units of 8).
GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("A100", "sm80", 19.5e12, 2.039e12, 108, 4, 16384, 256, 32, 16, 32, 164 * KIB, KIB),
        GPU("H100", "sm90", 67e12, 3.35e12, 132, 4, 16384, 256, 32, 16, 32, 228 * KIB, KIB),
        GPU("MI300X", "gfx942", 163.4e12, 5.3e12, 304, 4, 32768, 512, 64, 8, 32, 64 * KIB, 0),
    )
}


@dataclass(frozen=True)
class Estimate:
    """Estimates for one launch of a kernel on a GPU; none is a measurement."""

    seconds: float  # the least that arithmetic and memory allow
    bound: str  # which of the two: "arithmetic" or "memory"
    occupancy: float  # warps that a multiprocessor holds / those that it could hold
    limit: str  # what limits them: "registers", "shared memory", "blocks" or "none"
    rounds: float  # programs of the launch / those that the GPU holds at once


def estimate(example: KernelExample, found: Resources, gpu: GPU) -> Estimate:
    """Estimate one launch of an example that was compiled for this GPU."""
    arithmetic, memory = example.flops / gpu.peak, example.bytes / gpu.bandwidth
    blocks, limit = resident_blocks(found, example.num_warps, gpu)
    return Estimate(
        max(arithmetic, memory),
        "arithmetic" if arithmetic > memory else "memory",
        blocks * example.num_warps / (gpu.warps * gpu.schedulers),
        limit,
        example.programs / max(blocks * gpu.multiprocessors, 1),
    )


def resident_blocks(found: Resources, num_warps: int, gpu: GPU) -> tuple[int, str]:
    """Return how many blocks a multiprocessor holds at once, and what limits them."""
    unit = gpu.register_unit
    each = -(-max(found.registers, 1) * gpu.warp_size // unit) * unit  # registers of a warp
    limits = {
        "none": gpu.warps * gpu.schedulers // num_warps,
        "blocks": gpu.blocks,
        "registers": gpu.registers // each * gpu.schedulers // num_warps,
        "shared memory": gpu.shared // max(found.shared + gpu.reserved, 1),
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit
