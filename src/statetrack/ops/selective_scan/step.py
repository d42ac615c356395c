"""One token of the selective scan: the state changes in place, without gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.errors import UserError
from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer
from statetrack.kernels.operators import operator
from statetrack.ops.backends import (
    check_shape,
    choose,
    compute_dtype,
    full_precision,
    refuse_gradients,
)
from statetrack.ops.selective_scan.naive import selective_scan_naive
from statetrack.ops.selective_scan.native import INPUTS, dense

SelectiveScanStep = STRUCTURES["SelectiveScanStep"]


def selective_scan_step(
    state: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    *,
    allow_neg_eigval: bool = False,
    backend: str = "auto",
) -> Tensor:
    """One token of `selective_scan`, for decoding: updates `state` in place, without gradients.

    Args:
        state: [B, D, N], overwritten with the state after this token.
        u, delta: [B, D]; A: [D, N]; B, C: [B, N]; D: [D]; z: [B, D], as in `selective_scan`.
        allow_neg_eigval: whether eigenvalues cover [-1, 1].
        backend: "auto", "torch", "native" or "triton".

    Returns:
        y [B, D] in the type of `u`.
    """
    op = "selective_scan_step"
    if state.dim() != 3 or 0 in state.shape:
        raise UserError(f"{op}: state must be [B, D, N], none of them 0; got {list(state.shape)}")
    batch, channels, N = state.shape
    check_shape(op, "state", state, "[B, D, N]", (batch, channels, N))
    for name, x in (("u", u), ("delta", delta), ("z", z)):
        if x is not None:
            check_shape(op, name, x, "[B, D]", (batch, channels))
    check_shape(op, "A", A, "[D, N]", (channels, N))
    check_shape(op, "B", B, "[B, N]", (batch, N))
    check_shape(op, "C", C, "[B, N]", (batch, N))
    if D is not None:
        check_shape(op, "D", D, "[D]", (channels,))

    tensors = (u, delta, A, B, C, D, z)
    if torch.is_grad_enabled():
        refuse_gradients(op, state, *tensors)
    backend = choose(op, backend, ("torch", "native", "triton"), state, *tensors)
    if backend == "native":
        native = torch.ops.statetrack.selective_scan_step
        return native(state, *tensors, allow_neg_eigval).to(u.dtype)
    if backend == "triton":
        from statetrack.ops.selective_scan.gpu import selective_scan_step_triton  # imports Triton

        return selective_scan_step_triton(state, *tensors, allow_neg_eigval)
    dtype = compute_dtype(state, *tensors)
    out_dtype = u.dtype
    with full_precision(u):
        u, delta, B, C = (x.to(dtype)[:, None] for x in (u, delta, B, C))
        y, after = selective_scan_naive(
            u, delta, B, C, state.to(dtype), A=A.to(dtype), negative=allow_neg_eigval
        )
        state.copy_(after)
        if D is not None:
            y = y + D.to(dtype) * u
        y = y[:, 0]
        if z is not None:
            y = y * F.silu(z.to(dtype))
    return y.to(out_dtype)


def _cpu(state: Tensor, *inputs: Any) -> Tensor:
    y = _fake(state, *inputs)
    work = state.float().contiguous()
    *tensors, negative = inputs
    alive = [dense(x) for x in tensors]
    addresses = map(pointer, (work, work, *alive, y))
    sizes = (*state.shape, negative, False, torch.get_num_threads())
    call("selective_scan_step", SelectiveScanStep(*addresses, *sizes))
    if work is not state:
        state.copy_(work)
    torch.autograd.graph.increment_version(state)  # autograd must know that it changed
    return y


def _fake(state: Tensor, u: Tensor, *others: Any) -> Tensor:
    return u.new_empty(u.shape, dtype=torch.float32)


operator(f"selective_scan_step(Tensor(a!) state, {INPUTS}, bool negative) -> Tensor", _cpu, _fake)
