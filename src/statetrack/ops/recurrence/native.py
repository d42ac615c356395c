"""The recurrence with a matrix-valued state on the native kernels, as torch operators.

One operator serves the delta rule, its products and linear attention:

    S_t = a_t S_{t-1} + k_t u_t^T,   o_t = scale S_t^T q_t,
    u_t = v_t,  or  beta_t (v_t - a_t S_{t-1}^T k_t)  if there is a beta.

Forward and backward are both operators with fake implementations, so torch.compile traces through
them in both directions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer, view, viewable
from statetrack.kernels.operators import (
    Gradients,
    differentiable,
    empty_like,
    needs_gradients,
    operator,
)

Recurrence = STRUCTURES["Recurrence"]


def _arguments(*inputs: Any) -> tuple[ctypes.Structure, list[Tensor | None]]:
    """The structure, and the tensors that it points to."""
    q, k, v, beta, gate, initial, bounds, scale, factors, log_gate = inputs
    channels = gate.shape[3] if gate is not None and gate.dim() == 4 else 1
    if channels > 1 and (beta is not None or factors != 1):
        raise ValueError("gates on channels are for linear attention: without beta, one factor")
    if gate is not None and log_gate:
        gate = gate.float().exp()
    views = [None if x is None else viewable(x) for x in (q, k, v, beta, gate)]
    initial = None if initial is None else initial.float().contiguous()
    x = Recurrence(
        *map(view, views),
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
    x.o, x.final, x.error = pointer(o), pointer(final), pointer(error)
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
    grads = fake_backward(d_o, d_final, error, *inputs)
    x, alive = _arguments(*inputs)
    d_o = d_o.float().contiguous()
    d_final = None if d_final is None else d_final.float().contiguous()
    x.d_o, x.d_final, x.error = pointer(d_o), pointer(d_final), pointer(error)
    x.dq, x.dk, x.dv, x.dbeta, x.dgate, x.d_initial = map(pointer, grads)
    call("recurrence_backward", x)
    del alive
    return grads


def fake_backward(
    d_o: Tensor, d_final: Tensor | None, error: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    """Allocate the gradients of the six tensors."""
    return empty_like(inputs[:6])


def gradients_by(backward: str) -> Gradients:
    """Return the gradients of a recurrence whose backward pass is the operator of this name."""

    def gradients(
        grads: Sequence[Any], inputs: Sequence[Any], kept: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        d_o, d_final, _ = grads
        *given, keep = inputs
        q, v = inputs[0], inputs[2]
        if not keep:
            raise RuntimeError("the recurrence was told not to keep what its gradients need")
        if d_o is None:
            d_o = v.new_zeros(*q.shape[:3], v.shape[3])
        return getattr(torch.ops.statetrack, backward)(d_o, d_final, *kept, *given)

    return gradients


def _single(x: Any) -> Any:
    return None if x is None else x.float()


def definition(*inputs: Any) -> tuple[Tensor, Tensor | None]:
    """The operator as a composition of differentiable torch operations, in float32."""
    # they import this module
    from statetrack.ops import delta_product, gated_linear_attention

    *tensors, bounds, scale, factors, log_gate, _ = inputs
    q, k, v, beta, gate, initial = map(_single, tensors)
    options = {
        "g" if log_gate else "decay": gate,
        "scale": scale,
        "initial_state": initial,
        "output_final_state": True,
        "cu_seqlens": bounds,
        "backend": "torch",
    }
    if beta is None:
        return gated_linear_attention(q, k, v, **options)
    return delta_product(q, k, v, beta, num_householder=factors, **options)


INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? gate, Tensor? initial, Tensor? bounds, "
    "float scale, int factors, bool log_gate"
)
_recurrence = operator(
    f"recurrence({INPUTS}, bool keep) -> (Tensor, Tensor, Tensor)", _forward, _fake_forward
)
operator(
    f"recurrence_backward(Tensor d_o, Tensor? d_final, Tensor error, {INPUTS}) -> "
    f"({', '.join(['Tensor'] * 6)})",
    _backward,
    fake_backward,
)
differentiable("recurrence", gradients_by("recurrence_backward"), definition, reads=[2])


def recurrence_native(*inputs: Any) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] and the final state [N, H, K, V]; see the module's docstring.

    The inputs, in the operator's order, are q [B, T, H, K]; k [B, T * factors, H, K];
    v [B, T * factors, H, V]; beta [B, T * factors, H]; gate [B, T, H] or, without beta,
    [B, T, H, K]; initial [N, H, K, V]; bounds [N + 1] int64 on the CPU, where sequences begin and
    end; scale; factors; and whether `gate` is the logarithm of the gate.
    """
    o, final, _ = _recurrence(*inputs, needs_gradients(inputs))
    return o, final
