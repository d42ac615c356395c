"""The SwiGLU activation."""

from __future__ import annotations

from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.backends import choose, compute_dtype
from statetrack.ops.swiglu.naive import swiglu_naive
from statetrack.ops.swiglu.native import swiglu_native

_IMPLEMENTATIONS = {"naive": swiglu_naive, "native": swiglu_native}


def swiglu(x: Tensor, *, backend: str = "auto") -> Tensor:
    """silu(gate) * up for x = [gate, up], computed in float32 or wider.

    Args:
        x: [..., 2 I], both halves as one projection gives them.
        backend: "auto", "naive" (plain torch) or "native" (C++ kernels for CPUs).

    Returns:
        [..., I] in the type of `x`.
    """
    if x.dim() < 1 or 0 in x.shape or x.shape[-1] % 2 or not x.is_floating_point():
        got = f"{list(x.shape)} of {x.dtype}"
        raise UserError(f"swiglu: x must be a floating-point [..., 2 I], none of them 0; got {got}")
    run = _IMPLEMENTATIONS[choose("swiglu", backend, tuple(_IMPLEMENTATIONS), x)]
    return run(x.to(compute_dtype(x))).to(x.dtype)
