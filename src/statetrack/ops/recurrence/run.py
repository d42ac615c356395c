"""Checks, number types and choice of the backend for the ops with a matrix-valued state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from statetrack.devices import to_device
from statetrack.errors import UserError
from statetrack.ops.backends import (
    as_number,
    check_shape,
    check_tensors,
    choose,
    compute_dtype,
    full_precision,
)
from statetrack.ops.ragged import Ragged, check_cu_seqlens, each_sequence
from statetrack.ops.recurrence.fla_limits import unfit_fla
from statetrack.ops.recurrence.native import recurrence_native

# (q, k, v, beta, gate, state) -> (o, state), q scaled already, gates as they multiply the state
Implementation = Callable[..., tuple[Tensor, Tensor]]

# of the Triton kernels, whose programs hold whole columns of a state in registers
MOST_KEYS = 256


def run_recurrence(
    op: str,
    implementations: Mapping[str, Implementation],
    tensors: tuple[Any, ...],
    scale: float | Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    backend: str,
    factors: int | None = None,
    has_beta: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Check the arguments of a public op and run it on the backend of its choice.

    `tensors` are q, k, v, beta, g, decay and initial_state. With
    `factors` n, k, v and beta have n entries per token, [B, T * n, H, ...]. The implementations
    with beta get them as [B, T, n, H, ...]. The native and the Triton kernel serve every op here.
    """
    q, k, v, beta, g, decay, initial_state = tensors
    needed = {"q": q, "k": k, "v": v} | ({"beta": beta} if has_beta else {})
    check_tensors(op, needed, {"g": g, "decay": decay, "initial_state": initial_state})
    for name, x, dims in (("q", q, "[B, T, H, K]"), ("v", v, "[B, T, H, V]")):
        if x.dim() != 4 or 0 in x.shape:
            raise UserError(f"{op}: {name} must be {dims}, none of them 0; got {list(x.shape)}")
    B, T, H, K = q.shape
    V = v.shape[-1]
    n = factors or 1
    steps = "T * n" if factors else "T"
    check_shape(op, "q", q, "[B, T, H, K]", (B, T, H, K))
    check_shape(op, "k", k, f"[B, {steps}, H, K]", (B, T * n, H, K))
    check_shape(op, "v", v, f"[B, {steps}, H, V]", (B, T * n, H, V))
    if beta is not None:
        check_shape(op, "beta", beta, f"[B, {steps}, H]", (B, T * n, H))
    if g is not None and decay is not None:
        raise UserError(f"{op} takes g (the logarithm of the gate) or decay (the gate), not both")
    gate = decay if g is None else g
    if gate is not None:
        name = "g" if decay is None else "decay"
        if gate.dim() == 4 and not has_beta:
            check_shape(op, name, gate, "[B, T, H, K]", (B, T, H, K))
        else:
            check_shape(op, name, gate, "[B, T, H]", (B, T, H))
    bounds = None if cu_seqlens is None else check_cu_seqlens(cu_seqlens, B, T)
    N = B if bounds is None else len(bounds) - 1
    if initial_state is not None:
        check_shape(op, "initial_state", initial_state, "[N, H, K, V]", (N, H, K, V))

    if isinstance(scale, Tensor):  # it may be learned
        if scale.dim():
            raise UserError(f"{op}: scale must be one number; got shape {list(scale.shape)}")
        q, scale = q.to(compute_dtype(q, scale)) * scale, 1.0
    given = (q, k, v, beta, gate, initial_state)
    unfit = {}
    if q.is_cuda or (isinstance(backend, str) and backend == "fla"):
        unfit = unfit_fla(q, k, v, gate, bounds, g is not None)
    if K > MOST_KEYS:
        unfit["triton"] = f"it serves heads of at most {MOST_KEYS} key channels; got {K}"
    available = (*implementations, "native", "fla", "triton")
    backend = choose(op, backend, available, *given, unfit=unfit)
    dtype = compute_dtype(*given)
    out_dtype = v.dtype
    scale = K**-0.5 if scale is None else as_number(op, "scale", scale)
    if backend == "native":
        ends = None if bounds is None else torch.tensor(bounds, dtype=torch.int64, device="cpu")
        o, state = recurrence_native(*given, ends, scale, n, g is not None)
        return o.to(out_dtype), state if output_final_state else None
    if backend == "fla":
        from statetrack.ops.recurrence.fla import recurrence_fla  # imports torch's compiler

        with full_precision(q):
            o, state = recurrence_fla(*given, bounds, scale, n, g is not None, output_final_state)
        return o.to(out_dtype), state
    if backend == "triton":
        from statetrack.ops.recurrence.gpu import recurrence_triton  # imports Triton

        ends = None if cu_seqlens is None else to_device(cu_seqlens.long(), q.device)
        o, state = recurrence_triton(*given, ends, scale, n, g is not None)
        return o, state if output_final_state else None

    q, k, v = q.to(dtype) * scale, k.to(dtype), v.to(dtype)
    if gate is not None:
        gate = gate.to(dtype).exp() if decay is None else gate.to(dtype)
    if beta is not None:
        k, v, beta = (x.unflatten(1, (T, n)) for x in (k, v, beta.to(dtype)))
    state = q.new_zeros(N, H, K, V) if initial_state is None else initial_state.to(dtype)
    run = implementations[backend]
    with full_precision(q):
        if bounds is None:
            o, state = run(q, k, v, beta, gate, state)
        elif backend == "naive":
            o, state = each_sequence(run, (q, k, v, beta, gate), state, bounds)
        else:  # as rows of one length, of which the padding changes nothing: k = v = 0, gate = 1
            ragged = Ragged.from_bounds(bounds, q.device)
            beta = None if beta is None else ragged.pad(beta)
            if gate is not None:
                padding = ~ragged.valid.view(*ragged.valid.shape, *[1] * (gate.dim() - 2))
                gate = ragged.pad(gate).masked_fill(padding, 1.0)
            o, state = run(ragged.pad(q), ragged.pad(k), ragged.pad(v), beta, gate, state)
            o = ragged.unpad(o)
    return o.to(out_dtype), state if output_final_state else None
