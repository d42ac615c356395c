"""The matrix-valued recurrences on the native kernels, as torch operators.

One operator serves the delta rule, its products and linear attention (see csrc/kernels.h):

    S_t = a_t S_{t-1} + k_t u_t^T,   o_t = scale S_t^T q_t,
    u_t = v_t,  or  beta_t (v_t - a_t S_{t-1}^T k_t)  if there is a beta.

Forward and backward are both operators with fake implementations, so torch.compile traces through
them in both directions.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from statetrack.ops.native import View, call, pointer, viewable
from statetrack.ops.operators import differentiable, empty_like, operator


class Recurrence(ctypes.Structure):
    """The arguments of the kernels, field by field as in csrc/kernels.h."""

    _fields_ = [
        *((name, View) for name in ("q", "k", "v", "beta", "gate")),
        *((name, ctypes.c_int64) for name in ("gate_channels", "log_gate")),
        *((name, ctypes.c_void_p) for name in ("initial", "o", "error", "final")),
        *((name, ctypes.c_void_p) for name in ("d_o", "d_final", "dq", "dk", "dv", "dbeta")),
        *((name, ctypes.c_void_p) for name in ("dgate", "d_initial", "bounds")),
        *((name, ctypes.c_int64) for name in ("N", "T", "H", "K", "V", "factors")),
        ("scale", ctypes.c_double),
        ("threads", ctypes.c_int64),
    ]


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    initial: Tensor | None,
    bounds: Tensor | None,
    scale: float,
    factors: int,
    log_gate: bool,
) -> tuple[Recurrence, list[Tensor | None]]:
    """The structure, and the tensors that it points to."""
    channels = gate.shape[3] if gate is not None and gate.dim() == 4 else 1
    if channels > 1 and (beta is not None or factors != 1):
        raise ValueError("gates on channels are for linear attention: without beta, one factor")
    if gate is not None and log_gate:
        gate = gate.float().exp()
    views = [None if x is None else viewable(x) for x in (q, k, v, beta, gate)]
    initial = None if initial is None else initial.float().contiguous()
    x = Recurrence(
        *map(View.of, views),
        gate_channels=channels,
        log_gate=log_gate,
        initial=pointer(initial),
        bounds=pointer(bounds),
        N=len(bounds) - 1 if bounds is not None else len(q),
        T=q.shape[1],
        H=q.shape[2],
        K=q.shape[3],
        V=v.shape[3],
        factors=factors,
        scale=scale,
        threads=torch.get_num_threads(),
    )
    return x, [*views, initial, bounds]


def _forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    o, final, error = _fake_forward(*inputs)
    x, alive = _arguments(*inputs[:-1])
    x.o, x.final = o.data_ptr(), final.data_ptr()
    x.error = error.data_ptr() if error.numel() else None
    call("recurrence_forward", x)
    del alive
    return o, final, error


def _fake_forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, _, v, beta, _, _, bounds, _, factors, _, keep = inputs
    B, T, H, K = q.shape
    V = v.shape[3]
    N = B if bounds is None else bounds.shape[0] - 1
    o = q.new_empty(B, T, H, V, dtype=torch.float32)
    final = q.new_empty(N, H, K, V, dtype=torch.float32)
    kept = (B, T * factors, H, V) if keep and beta is not None else (0,)
    return o, final, q.new_empty(kept, dtype=torch.float32)


def _backward(
    d_o: Tensor, d_final: Tensor | None, error: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    grads = _fake_backward(d_o, d_final, error, *inputs)
    x, alive = _arguments(*inputs)
    d_o = d_o.float().contiguous()
    d_final = None if d_final is None else d_final.float().contiguous()
    x.d_o, x.d_final, x.error = d_o.data_ptr(), pointer(d_final), error.data_ptr()
    x.dq, x.dk, x.dv, x.dbeta, x.dgate, x.d_initial = (g.data_ptr() or None for g in grads)
    call("recurrence_backward", x)
    del alive
    return grads


def _fake_backward(
    d_o: Tensor, d_final: Tensor | None, error: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    return empty_like(inputs[:6])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, scale, factors, log_gate, _ = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.options = scale, factors, log_gate
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_o: Tensor | None, d_final: Tensor | None, _: Any) -> tuple[Any, ...]:
    *tensors, error = ctx.saved_tensors
    q, _k, v, beta, *_rest = tensors
    if error.numel() == 0 and beta is not None:
        raise RuntimeError("the native recurrence was told not to keep what its gradients need")
    if d_o is None:
        d_o = q.new_zeros(*q.shape[:3], v.shape[3])
    grads = torch.ops.statetrack.recurrence_backward(d_o, d_final, error, *tensors, *ctx.options)
    wanted = [g if x is not None else None for g, x in zip(grads, tensors[:6], strict=True)]
    return *wanted, None, None, None, None, None


_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? gate, Tensor? initial, Tensor? bounds, "
    "float scale, int factors, bool log_gate"
)
_recurrence = operator(
    f"recurrence({_INPUTS}, bool keep) -> (Tensor, Tensor, Tensor)", _forward, _fake_forward
)
operator(
    f"recurrence_backward(Tensor d_o, Tensor? d_final, Tensor error, {_INPUTS}) -> "
    f"({', '.join(['Tensor'] * 6)})",
    _backward,
    _fake_backward,
)
differentiable("recurrence", _setup, _gradients)


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    initial: Tensor | None,
    bounds: Tensor | None,
    *,
    scale: float,
    factors: int = 1,
    log_gate: bool = False,
) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] and the final state [N, H, K, V]; see the module's docstring.

    q: [B, T, H, K]; k: [B, T * factors, H, K]; v: [B, T * factors, H, V];
    beta: [B, T * factors, H]; gate: [B, T, H] or, without beta, [B, T, H, K];
    initial: [N, H, K, V]; bounds: [N + 1] int64 on the CPU, where sequences begin and end.
    """
    tensors = (q, k, v, beta, gate, initial)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    o, final, _ = _recurrence(*tensors, bounds, scale, factors, log_gate, keep)
    return o, final
