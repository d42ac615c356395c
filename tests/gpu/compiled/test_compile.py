"""Every Triton kernel compiles for real GPUs, and takes no more shared memory than they have."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
import triton
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

import statetrack.ops
from benchmarks.gpu_kernels.compiled import (
    TARGETS,
    compile_example,
    compile_kernel,
    examples,
    fresh_cache,
    instructions,
    jit_function,
    resources,
    too_much_shared,
)
from statetrack.kernels.gpu import KernelExample
from tests.gpu.compiled.kernels import BROKEN, LARGE, SUM, running_sum

EXAMPLES = examples()
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    with fresh_cache():
        yield


# -- our kernels ----------------------------------------------------------------------------------


@every_target
@pytest.mark.parametrize("example", EXAMPLES, ids=[e.name for e in EXAMPLES])
def test_compiles(example: KernelExample, target: Any) -> None:
    found = resources(compile_example(example, target), target)
    assert found.registers > 0
    assert too_much_shared(found, target) is None


def test_every_kernel_has_an_example() -> None:
    """A kernel is in an example, or used by one that is."""
    assert EXAMPLES
    kernels = {kernel.__name__: kernel for kernel in _kernels()}
    found: set[str] = set()
    new = {jit_function(example.kernel).__name__ for example in EXAMPLES}
    while new:
        found |= new
        text = "\n".join(kernels[name].src for name in new)
        new = (set(re.findall(r"\w+", text)) & set(kernels)) - found
    assert set(kernels) == found


def _kernels() -> Iterator[JITFunction]:
    """Find everything that is compiled by Triton in modules of ops whose names begin with gpu."""
    for package in pkgutil.iter_modules(statetrack.ops.__path__, "statetrack.ops."):
        if not package.ispkg:
            continue
        folder = importlib.import_module(package.name).__path__
        for file in pkgutil.iter_modules(folder, f"{package.name}."):
            if file.name.rpartition(".")[2].startswith("gpu"):
                for x in vars(importlib.import_module(file.name)).values():
                    if isinstance(x, JITFunction | Autotuner | Heuristics):
                        yield jit_function(x)


# -- how they are compiled and read ---------------------------------------------------------------


@every_target
def test_what_a_kernel_takes(target: Any) -> None:
    compiled = compile_example(SUM, target)
    found = resources(compiled, target)
    assert 4 <= found.registers < 64
    assert (found.shared, found.spilled) == (0, 0)
    assert 20 < instructions(compiled, target) < 1000


@every_target
def test_more_shared_memory_than_there_is(target: Any) -> None:
    found = resources(compile_example(LARGE, target), target)
    problem = too_much_shared(found, target)
    if target.name == "gfx942":
        assert problem == f"{found.shared:,} bytes of shared memory; gfx942 has 65,536"
    else:
        assert problem is None
        assert found.shared == 128 * 1024


def test_spilled_registers() -> None:
    target = TARGETS["sm80"]
    wide = {**SUM.arguments, "N": 8192}  # 256 numbers a thread, with one warp
    assert resources(compile_kernel(running_sum, wide, target, num_warps=1), target).spilled > 0


def test_aligned_integers() -> None:
    """Triton gets to know what is divisible by 16."""
    target = TARGETS["sm80"]
    for kind, told in (("i32", False), ("i32:16", True)):
        compiled = compile_kernel(running_sum, {**SUM.arguments, "T": kind}, target, 4)
        (line,) = [line for line in compiled.asm["ttir"].splitlines() if "tt.func" in line]
        assert ("%T: i32 {tt.divisibility" in line) == told
        assert "%x: !tt.ptr<f32> {tt.divisibility = 16" in line


@every_target
def test_what_does_not_compile_is_an_error(target: Any) -> None:
    with pytest.raises(triton.compiler.errors.CompilationError):
        compile_example(BROKEN, target)


def test_wrapped_kernels() -> None:
    tuned = triton.autotune([triton.Config({}, num_warps=4)], key=[])(running_sum)
    wrapped = triton.heuristics({"SQUARED": lambda arguments: True})(tuned)
    assert jit_function(wrapped) is running_sum


def test_nothing_is_taken_from_a_cache() -> None:
    hits = []

    def listen(*, cache_hit: bool, **others: Any) -> None:
        hits.append(cache_hit)

    with triton.knobs.compilation.scope():
        triton.knobs.compilation.listener = listen
        for _ in range(2):
            with fresh_cache():
                compile_example(SUM, TARGETS["sm80"])
    assert hits == [False, False]
