"""What every op does before its backend runs: choose the backend, settle the number type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from statetrack.errors import UserError, check_type
from statetrack.kernels import gpu, library

# an op has some of these
BACKENDS = ("naive", "torch", "native", *gpu.BACKENDS)


class NoSuchBackendError(UserError):
    """An op has no backend of this name, whatever the tensors."""


def choose(
    op: str,
    backend: str,
    available: Sequence[str],
    *tensors: Tensor | None,
    unfit: Mapping[str, str] | None = None,
) -> str:
    """Return the backend to use.

    "auto" depends on the tensors: on the CPU native, torch or naive, on a GPU fla, triton, torch or
    naive, the first that can serve them.

    Args:
        op: its name, for messages.
        backend: what the user asked for.
        available: the backends that the op has.
        *tensors: all tensors of the call.
        unfit: backends that cannot serve this call for a reason besides its tensors' device and
            dtype, with the reason.
    """
    check_type(f"{op}: backend", backend, str, "a text")
    unfit = unfit or {}
    if backend == "auto":
        if "native" in available and "native" not in unfit and library.serves(*tensors):
            return "native"
        if any(x is not None and x.is_cuda for x in tensors):
            for name in gpu.BACKENDS:
                if name not in available or name in unfit:
                    continue
                if gpu.refusal(name, *tensors) is None:
                    _warn_untested(name)
                    return name
                if gpu.missing(name) and not torch.compiler.is_compiling():
                    gpu.warn_missing()
        return "torch" if "torch" in available else "naive"
    if backend not in available:
        raise NoSuchBackendError(
            f"{op} has no backend {backend!r}; it has: {', '.join(['auto', *available])}"
        )
    reason = unfit.get(backend)
    if reason is None and backend in gpu.BACKENDS:
        reason = gpu.refusal(backend, *tensors)
    if reason is None and backend == "native" and not library.serves(*tensors):
        reason = library.WHY_MISSING or (
            "it serves tensors on the CPU that are not float64, outside of torch.func transforms "
            "and forward-mode differentiation"
        )
    if reason is not None:
        raise UserError(f"{op} cannot use its backend {backend}: {reason}")
    if backend in gpu.BACKENDS:
        _warn_untested(backend)
    return backend


def _warn_untested(backend: str) -> None:
    if not torch.compiler.is_compiling() and (reason := gpu.untested(backend)):
        gpu.warn_untested(reason)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """State and arithmetic are float32, or float64 if any input is."""
    for t in tensors:  # not any(): see library.serves
        if t is not None and t.dtype is torch.float64:
            return torch.float64
    return torch.float32


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast does not lower the precision of a recurrence."""
    kind = like.device.type
    if not torch.amp.is_autocast_available(kind):  # meta tensors, for instance
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def check_tensors(op: str, needed: Mapping[str, object], others: Mapping[str, object]) -> None:
    """Check that arguments, by name, are dense tensors; the others may be None."""
    for name, x in {**needed, **others}.items():
        if x is None and name in others:
            continue
        if not isinstance(x, Tensor) or x.layout is not torch.strided:
            got = x.layout if isinstance(x, Tensor) else type(x).__name__
            raise UserError(f"{op}: {name} must be a dense tensor; got {got}")


def as_number(op: str, name: str, value: Any) -> float:
    """The value of an argument that must be one number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{op}: {name} must be one number; got {type(value).__name__}") from None


def check_shape(op: str, name: str, tensor: Tensor, dims: str, shape: tuple[int, ...]) -> None:
    """Check a tensor against the shape that the other arguments imply."""
    if tuple(tensor.shape) != shape:
        raise UserError(
            f"{op}: {name} must have shape {dims} = {list(shape)}; got {list(tensor.shape)}"
        )
    if not tensor.is_floating_point():
        raise UserError(f"{op}: {name} must be a floating-point tensor; got {tensor.dtype}")


def refuse_gradients(op: str, *inputs: object) -> None:
    """Raise if an input requires gradients: a step changes its state in place and has none."""
    if any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        remedy = "call it under torch.no_grad(), or detach its inputs"
        raise UserError(f"{op} has no gradients, and an input requires them: {remedy}")
