"""Mamba's selective scan, with eigenvalues in [0, 1] or [-1, 1]."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.devices import to_device
from statetrack.errors import UserError
from statetrack.ops.backends import (
    check_shape,
    check_tensors,
    choose,
    compute_dtype,
    full_precision,
)
from statetrack.ops.ragged import Ragged, check_cu_seqlens, each_sequence
from statetrack.ops.selective_scan.blocked import selective_scan_blocked
from statetrack.ops.selective_scan.naive import selective_scan_naive, transition
from statetrack.ops.selective_scan.native import selective_scan_native
from statetrack.ops.selective_scan.step import selective_scan_step

__all__ = ["selective_scan", "selective_scan_step", "transition"]

_IMPLEMENTATIONS = {"naive": selective_scan_naive, "torch": selective_scan_blocked}


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    *,
    allow_neg_eigval: bool = False,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """h_t = a_t h_{t-1} + delta_t B_t u_t,  y_t = C_t . h_t + D u_t  (times SiLU(z_t) if given).

    The transition is diagonal, a_t = exp(delta_t A) in [0, 1], or 2 exp(delta_t A) - 1 in [-1, 1]
    with `allow_neg_eigval`; only the transition changes, not what is written. Gradients flow to
    every input, to `initial_state` and through the final state.

    Args:
        u, delta: [B, T, D], delta >= 0 (after the softplus).
        A: [D, N], negative.
        B, C: [B, T, N].
        D: [D], the skip connection.
        z: [B, T, D], the gate on the output.
        allow_neg_eigval: whether eigenvalues cover [-1, 1].
        initial_state: [B, D, N] ([S, D, N] for S sequences in `cu_seqlens`), zero if absent.
        output_final_state: whether to return the state after the last token.
        cu_seqlens: [S + 1] boundaries of sequences packed into one row (batch 1).
        backend: "auto", "naive" (the defining loop), "torch" (blocked scan), "native" (C++
            kernels) or "triton" (kernels for GPUs); "auto" takes kernels where they can serve the
            tensors.

    Returns:
        y [B, T, D] in the type of `u`, and the final state in float32 (float64 if any input is)
        or None.
    """
    op = "selective_scan"
    needed = {"u": u, "delta": delta, "A": A, "B": B, "C": C}
    check_tensors(op, needed, {"D": D, "z": z, "initial_state": initial_state})
    if u.dim() != 3 or 0 in u.shape:
        raise UserError(f"{op}: u must be [B, T, D], none of them 0; got {list(u.shape)}")
    batch, length, channels = u.shape
    if A.dim() != 2 or 0 in A.shape:
        raise UserError(f"{op}: A must be [D, N], none of them 0; got {list(A.shape)}")
    N = A.shape[1]
    check_shape(op, "u", u, "[B, T, D]", (batch, length, channels))
    check_shape(op, "delta", delta, "[B, T, D]", (batch, length, channels))
    check_shape(op, "A", A, "[D, N]", (channels, N))
    check_shape(op, "B", B, "[B, T, N]", (batch, length, N))
    check_shape(op, "C", C, "[B, T, N]", (batch, length, N))
    if D is not None:
        check_shape(op, "D", D, "[D]", (channels,))
    if z is not None:
        check_shape(op, "z", z, "[B, T, D]", (batch, length, channels))
    bounds = None if cu_seqlens is None else check_cu_seqlens(cu_seqlens, batch, length)
    sequences = batch if bounds is None else len(bounds) - 1
    if initial_state is not None:
        shape = (sequences, channels, N)
        check_shape(op, "initial_state", initial_state, "[B, D, N]", shape)

    tensors = (u, delta, A, B, C, D, z, initial_state)
    backend = choose(op, backend, (*_IMPLEMENTATIONS, "native", "triton"), *tensors)
    dtype = compute_dtype(*tensors)
    out_dtype = u.dtype
    if backend == "native":
        ends = None if bounds is None else torch.tensor(bounds, dtype=torch.int64, device="cpu")
        y, final = selective_scan_native(*tensors, ends, allow_neg_eigval, output_final_state)
        return y.to(out_dtype), final
    if backend == "triton":
        from statetrack.ops.selective_scan.gpu import selective_scan_triton  # imports Triton

        ends = None if cu_seqlens is None else to_device(cu_seqlens.long(), u.device)
        return selective_scan_triton(*tensors, ends, allow_neg_eigval, output_final_state)

    implementation = _IMPLEMENTATIONS[backend]
    run = partial(implementation, A=A.to(dtype), negative=allow_neg_eigval)
    u, delta, B, C = u.to(dtype), delta.to(dtype), B.to(dtype), C.to(dtype)
    if initial_state is None:
        state = u.new_zeros(sequences, channels, N)
    else:
        state = initial_state.to(dtype)

    with full_precision(u):
        if bounds is None:
            y, state = run(u, delta, B, C, state)
        elif implementation is selective_scan_naive:
            y, state = each_sequence(run, (u, delta, B, C), state, bounds)
        else:
            ragged = Ragged.from_bounds(bounds, u.device)
            padded = ragged.pad(delta).masked_fill(~ragged.valid[..., None], 0.0)  # a = 1, no write
            y, state = run(ragged.pad(u), padded, ragged.pad(B), ragged.pad(C), state)
            y = ragged.unpad(y)
    if D is not None:
        y = y + D.to(dtype) * u
    if z is not None:
        y = y * F.silu(z.to(dtype))
    return y.to(out_dtype), state if output_final_state else None
