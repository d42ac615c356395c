"""The packages for GPUs, Triton and flash-linear-attention: whether they can serve a call.

Neither is imported before an op needs it. With TRITON_INTERPRET=1 Triton's interpreter runs the
same kernels on tensors on the CPU, which is slow and for tests.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.operators import library
from statetrack.kernels.transforms import transformed
from statetrack.requirements import declared, untested_version

BACKENDS = ("fla", "triton")
"""The backends of ops on GPUs, the preferred one first."""
_PACKAGES = {"triton": ("triton",), "fla": ("triton", "fla")}
_DISTRIBUTIONS = {"triton": ("triton",), "fla": ("flash-linear-attention", "triton")}


SUPPORTED = declared("gpu")
INSTALL = {
    "triton": f'pip install "triton{",".join(SUPPORTED.get("triton", []))}"',
    "fla": 'pip install "statetrack[gpu]"',
}
"""The command that installs what a backend needs."""
UNTESTED = {name: untested_version(name, bounds) for name, bounds in SUPPORTED.items()}
"""The message of `untested_version` for each package of the extra `gpu`; None: no message."""
# Found out once, here: torch.compile traces `missing`, but can trace neither a search nor a cache.
_MISSING = {
    name: None if all(find_spec(package) for package in packages) else INSTALL[name]
    for name, packages in _PACKAGES.items()
}


@dataclass(frozen=True)
class KernelExample:
    """A Triton kernel at a typical size, for compiling ahead of time and for estimates."""

    name: str
    kernel: Any  # triton.JITFunction
    arguments: dict[str, Any]  # parameter -> Triton type such as "*fp32", or constant value
    num_warps: int
    size: str  # the size in words, such as "B 8, T 2048, D 2048, N 16"
    flops: float  # of one launch at this size
    bytes: float  # moved to and from memory by it
    programs: int  # of its grid


def interpreting() -> bool:
    """Whether Triton's interpreter runs its kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing(backend: str) -> str | None:
    """Return the command that installs what a GPU backend lacks, None if it lacks nothing."""
    return _MISSING[backend]


def untested(backend: str) -> str | None:
    """Return which package of a GPU backend is not of a tested version; None if all are."""
    return next(filter(None, map(UNTESTED.get, _DISTRIBUTIONS[backend])), None)


def refusal(backend: str, *tensors: Tensor | None) -> str | None:
    """Return why a GPU backend cannot serve these tensors, None if it can."""
    if command := missing(backend):
        return f"it is not installed: {command}"
    if transformed():
        return "it has no torch.func transforms and no forward-mode differentiation"
    for x in tensors:
        if x is not None and x.dtype is torch.float64:
            return "it does not compute in float64"
        if x is not None and not (x.is_cuda or (x.is_cpu and interpreting())):
            return f"it needs tensors on a GPU (CUDA or ROCm); got {x.device}"
    return None


@cache
def warn_missing() -> None:
    """Warn, once, that GPU tensors are served by a slower backend than the preferred one."""
    names = " and ".join(name for name in BACKENDS if missing(name))
    warnings.warn(
        f"ops on GPU tensors are slower than they could be without {names}: {INSTALL['fla']}",
        stacklevel=2,
    )


@cache
def warn_untested(reason: str) -> None:
    """Warn, once, that a backend runs on a version of a package that was not tested."""
    warnings.warn(f"ops on GPU tensors may fail or be wrong: {reason}", stacklevel=2)


def gpu_operator(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define torch.ops.statetrack.<name> for GPUs, Triton's interpreter and tracing; return it."""
    name = schema.partition("(")[0]

    def on_gpu(*inputs: Any) -> Any:
        first = next(x for x in inputs if isinstance(x, Tensor))
        with torch.cuda.device_of(first):  # Triton launches on the current device
            return run(*inputs)

    library.define(schema)
    library.impl(name, on_gpu, "CUDA")
    library.impl(name, run, "CPU")
    torch.library.register_fake(f"statetrack::{name}", fake, lib=library)
    return getattr(torch.ops.statetrack, name)
