"""Softplus, from which step sizes are made."""

from __future__ import annotations

from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.backends import choose, compute_dtype
from statetrack.ops.softplus.naive import softplus_naive
from statetrack.ops.softplus.native import softplus_native

_IMPLEMENTATIONS = {"naive": softplus_naive, "native": softplus_native}


def softplus(x: Tensor, *, backend: str = "auto") -> Tensor:
    """log(1 + e^x), computed in float32 or wider.

    Args:
        x: of any shape.
        backend: "auto", "naive" (plain torch) or "native" (C++ kernels for CPUs).

    Returns:
        A tensor of the shape and type of `x`.
    """
    if not x.is_floating_point():
        raise UserError(f"softplus: x must be a floating-point tensor; got {x.dtype}")
    run = _IMPLEMENTATIONS[choose("softplus", backend, tuple(_IMPLEMENTATIONS), x)]
    return run(x.to(compute_dtype(x))).to(x.dtype)
