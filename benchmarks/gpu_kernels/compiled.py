"""Compile a Triton kernel ahead of time, and read what it takes of a GPU. No driver is needed."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import statetrack.ops
from statetrack.kernels.gpu import KernelExample

KIB = 1024


@dataclass(frozen=True)
class Target:
    """A GPU architecture and its limits."""

    name: str
    triton: GPUTarget
    shared: int  # bytes of shared memory (LDS) that one block may have

    @property
    def nvidia(self) -> bool:
        """Whether it is a GPU of NVIDIA."""
        return self.triton.backend == "cuda"


# Shared memory of a block: NVIDIA's tuning guides for Ampere (163 KB), Hopper and Blackwell (227
# KB each), section "Unified Shared Memory/L1/Texture Cache"; AMD's "GPU hardware specifications"
# (LDS of MI300X: 64 KiB).
TARGETS = {
    target.name: target
    for target in (
        Target("sm80", GPUTarget("cuda", 80, 32), 163 * KIB),
        Target("sm90", GPUTarget("cuda", 90, 32), 227 * KIB),
        Target("sm100", GPUTarget("cuda", 100, 32), 227 * KIB),
        Target("gfx942", GPUTarget("hip", "gfx942", 64), 64 * KIB),
    )
}


@dataclass(frozen=True)
class Resources:
    """Registers, shared memory, spills and instructions of a compiled kernel."""

    registers: int  # vector registers of a thread
    shared: int  # bytes of a block
    spilled: int  # bytes of a thread that do not fit its registers and are kept in memory


def modules() -> Iterator[Any]:
    """Import the `gpu` module of each op that has one."""
    for found in pkgutil.iter_modules(statetrack.ops.__path__, "statetrack.ops."):
        if found.ispkg and find_spec(f"{found.name}.gpu"):
            yield importlib.import_module(f"{found.name}.gpu")


def examples() -> list[KernelExample]:
    """List the examples of all ops."""
    return [example for module in modules() for example in module.examples()]


def jit_function(kernel: Any) -> JITFunction:
    """Return the kernel inside of autotuners and heuristics."""
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    return kernel


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Let Triton compile anew what it has compiled before."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        yield


def compile_kernel(
    kernel: Any,
    arguments: Mapping[str, Any],
    target: Target,
    num_warps: int,
    num_stages: int | None = None,
) -> Any:
    """Compile a kernel for a target.

    Args:
        kernel: the kernel.
        arguments: by parameter, Triton types, or the values of constants. Pointers are taken to
            be aligned to 16 bytes, as torch's tensors are; integers whose type ends in ":16" are
            taken to be divisible by 16, as Triton finds out when it launches a kernel.
        target: what to compile for.
        num_warps: of a program.
        num_stages: how many iterations of a loop overlap; Triton's default if absent.
    """
    kernel = jit_function(kernel)
    types, constants, aligned = {}, {}, {}
    for n, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr or not isinstance(value, str):
            types[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        types[parameter.name], _, divisor = value.partition(":")
        if divisor or value.startswith("*"):
            aligned[(n,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, types, constants, aligned)
    # products and sums are fused: Triton's default up to 3.9, which warns that it will change
    options = {"num_warps": num_warps, "enable_fp_fusion": True}
    if num_stages is not None:
        options["num_stages"] = num_stages
    return triton.compile(source, target=target.triton, options=options)


def compile_example(example: KernelExample, target: Target) -> Any:
    """Compile an example for a target."""
    return compile_kernel(example.kernel, example.arguments, target, example.num_warps)


def resources(compiled: Any, target: Target) -> Resources:
    """Read what a compiled kernel takes."""
    shared = compiled.metadata.shared
    if target.nvidia:
        usage = _cuda_tool("cuobjdump", "--dump-resource-usage", compiled)
        found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", usage)
        assert found, usage
        registers, stack, local = map(int, found.groups())
        return Resources(registers, shared, stack + local)
    text = compiled.asm["amdgcn"]
    keys = ("vgpr_count", "group_segment_fixed_size", "private_segment_fixed_size")
    lines = [re.search(rf"^\s+\.{key}:\s+(\d+)", text, re.M) for key in keys]
    registers, fixed, private = (int(line[1]) for line in lines if line)
    return Resources(registers, max(shared, fixed), private)


def instructions(compiled: Any, target: Target) -> int:
    """Count the machine's instructions in a compiled kernel, without those that do nothing."""
    if target.nvidia:
        text = _cuda_tool("nvdisasm", "-c", compiled)  # SASS
        words = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)", text, re.M)
    else:
        text = (
            compiled.asm["amdgcn"].partition("\n.Lfunc_begin0:")[2].partition("\n.Lfunc_end0:")[0]
        )
        words = re.findall(r"^\t([a-z]\w+)", text, re.M)
    return sum(word not in ("NOP", "s_nop") for word in words)


def _cuda_tool(name: str, option: str, compiled: Any) -> str:
    """Run a tool of CUDA that comes with Triton on a compiled kernel."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        command = [getattr(triton.knobs.nvidia, name).path, option, str(file)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def too_much_shared(found: Resources, target: Target) -> str | None:
    """Return by how much a kernel exceeds the shared memory of its target; None if it does not."""
    if found.shared <= target.shared:
        return None
    return f"{found.shared:,} bytes of shared memory; {target.name} has {target.shared:,}"
