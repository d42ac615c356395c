"""What every op does before its backend runs: choose the backend, settle the number type."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops import native

# Not every op has every one of these; an op says which it has when the choice is impossible.
BACKENDS = ("naive", "torch", "native")


def choose(op: str, backend: str, available: Sequence[str], *tensors: Tensor | None) -> str:
    """The backend to use: "auto" is native, torch or naive, the first that can."""
    if backend == "auto":
        if "native" in available and native.serves(*tensors):
            return "native"
        return "torch" if "torch" in available else "naive"
    if backend not in available:
        raise UserError(
            f"{op} has no backend {backend!r}; it has: {', '.join(['auto', *available])}"
        )
    if backend == "native" and not native.serves(*tensors):
        reason = native.WHY_MISSING or (
            "it serves tensors on the CPU that are not float64, outside of torch.func transforms "
            "and forward-mode differentiation"
        )
        raise UserError(f"{op} cannot use its native backend: {reason}")
    return backend


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """State and arithmetic are float32, or float64 if any input is."""
    for t in tensors:  # not any(): see native.serves
        if t is not None and t.dtype is torch.float64:
            return torch.float64
    return torch.float32


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast does not lower the precision of a recurrence."""
    kind = like.device.type
    if not torch.amp.is_autocast_available(kind):  # meta tensors, for instance
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def check_shape(op: str, name: str, tensor: Tensor, dims: str, shape: tuple[int, ...]) -> None:
    """Check a tensor against the shape that the other arguments imply."""
    if tuple(tensor.shape) != shape:
        raise UserError(
            f"{op}: {name} must have shape {dims} = {list(shape)}; got {list(tensor.shape)}"
        )
    if not tensor.is_floating_point():
        raise UserError(f"{op}: {name} must be a floating-point tensor; got {tensor.dtype}")
