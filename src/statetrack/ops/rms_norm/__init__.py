"""RMSNorm."""

from __future__ import annotations

from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.backends import check_shape, choose, compute_dtype
from statetrack.ops.rms_norm.naive import rms_norm_naive
from statetrack.ops.rms_norm.native import rms_norm_native

_IMPLEMENTATIONS = {"naive": rms_norm_naive, "native": rms_norm_native}


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6, backend: str = "auto") -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32 or wider.

    Args:
        x: [..., D].
        weight: [D].
        eps: what keeps rows of zeros finite.
        backend: "auto", "naive" (plain torch) or "native" (C++ kernels for CPUs).

    Returns:
        [..., D] in the type of `x`.
    """
    if x.dim() < 1 or 0 in x.shape or not x.is_floating_point():
        got = f"{list(x.shape)} of {x.dtype}"
        raise UserError(f"rms_norm: x must be a floating-point [..., D], none of them 0; got {got}")
    check_shape("rms_norm", "weight", weight, "[D]", (x.shape[-1],))
    run = _IMPLEMENTATIONS[choose("rms_norm", backend, tuple(_IMPLEMENTATIONS), x, weight)]
    dtype = compute_dtype(x, weight)
    return run(x.to(dtype), weight.to(dtype), eps).to(x.dtype)
