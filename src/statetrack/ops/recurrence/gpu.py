"""The recurrence with a matrix-valued state on GPUs, by Triton kernels, as torch operators.

Importing this module imports Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from statetrack.kernels.gpu import gpu_operator
from statetrack.kernels.operators import differentiable, needs_gradients
from statetrack.ops.recurrence.gpu_kernels import (
    recurrence_backward,
    recurrence_forward,
    recurrence_states,
)
from statetrack.ops.recurrence.gpu_sizes import backward_block, chunk_size, forward_block
from statetrack.ops.recurrence.gpu_sizes import examples as examples
from statetrack.ops.recurrence.native import INPUTS, definition, fake_backward, gradients_by


def _view(x: Tensor) -> Tensor:
    """[B, T, H] or [B, T, H, K], dense in heads and channels, one stride through all rows' tokens.

    Slices of a fused projection are taken as they are; anything else is copied.
    """
    rows, length, *sizes = x.shape
    row, token, *strides = x.stride()
    fits = rows == 1 or length == 1 or row == length * token
    dense = 1
    for size, stride in zip(sizes[::-1], strides[::-1], strict=True):
        fits = fits and (size == 1 or stride == dense)
        dense *= size
    return x if fits else x.contiguous()


def _views(**tensors: Tensor | None) -> dict[str, Any]:
    """The tensors as kernels read them, by name, and the strides of their tokens."""
    views = {name: None if x is None else _view(x) for name, x in tensors.items()}
    strides = {
        f"{name}_token": 0 if x is None else x.stride(1 if x.shape[1] > 1 else 0)
        for name, x in views.items()
    }
    return {**views, **strides}


def _state(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float().contiguous()


def _sequences(q: Tensor, bounds: Tensor | None) -> int:
    return q.shape[0] if bounds is None else bounds.shape[0] - 1


def _sizes(*inputs: Any) -> dict[str, Any]:
    """The arguments that all kernels share."""
    q, _, v, _, gate, _, bounds, _, factors, log_gate = inputs
    return {
        "bounds": bounds,
        "T": q.shape[1],
        "H": q.shape[2],
        "K": q.shape[3],
        "V": v.shape[3],
        "FACTORS": factors,
        "CHANNELS": gate is not None and gate.dim() == 4,
        "LOG_GATE": gate is not None and log_gate,
    }


def _launch_forward(o: Tensor, final: Tensor, error: Tensor | None, *inputs: Any) -> None:
    q, k, v, beta, gate, initial, bounds, scale, _, _ = inputs
    H, K, V = q.shape[2], q.shape[3], v.shape[3]
    block = forward_block(K, V)
    recurrence_forward[_sequences(q, bounds) * H, triton.cdiv(V, block["BV"])](
        **_views(q=q, k=k, v=v, beta=beta, gate=gate),
        **_sizes(*inputs),
        **block,
        **{"o": o, "final": final, "error": error, "initial": initial, "scale": scale},
    )


def _forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    o, final, error = _fake_forward(*inputs)
    *tensors, initial, bounds, scale, factors, log_gate, _ = inputs
    kept = error if error.numel() else None
    options = bounds, scale, factors, log_gate
    _launch_forward(o, final, kept, *tensors, _state(initial), *options)
    return o, final, error


def _fake_forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, _, v, beta, _, _, bounds, _, factors, _, keep = inputs
    B, T, H, K = q.shape
    V = v.shape[3]
    o = v.new_empty(B, T, H, V)
    final = q.new_empty(_sequences(q, bounds), H, K, V, dtype=torch.float32)
    kept = (B, T * factors, H, V) if keep and beta is not None else (0,)
    return o, final, q.new_empty(kept, dtype=torch.float32)


def _backward(
    d_o: Tensor, d_final: Tensor | None, error: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    q, k, v, beta, gate, initial, bounds, scale, factors, _ = inputs
    B, T, H, K = q.shape
    V = v.shape[3]
    N, chunk = _sequences(q, bounds), chunk_size(K)
    states = q.new_empty(B * T * factors // chunk + N, H, V, K, dtype=torch.float32)
    shared = {
        **_views(k=k, u=v if beta is None else error, beta=beta, gate=gate),
        **_sizes(*inputs),
        "states": states,
        "CHUNK": chunk,
    }
    block = forward_block(K, V)
    grid = N * H, triton.cdiv(V, block["BV"])
    recurrence_states[grid](**shared, **block, initial=_state(initial))

    block = backward_block(K, V)
    count = triton.cdiv(V, block["BV"])
    dq, dk, dv, dbeta, dgate, d_initial = fake_backward(d_o, d_final, error, *inputs)
    parts = [x if count == 1 else x.new_empty(count, *x.shape) for x in (dq, dk, dbeta, dgate)]
    recurrence_backward[N * H, count](
        **_views(q=q, d_o=d_o),
        **shared,
        **block,
        **{"d_final": _state(d_final), "scale": scale, "all_tokens": B * T},
        **dict(zip(("dq", "dk", "dbeta", "dgate"), parts, strict=True)),
        **{"dv": dv, "d_initial": None if initial is None else d_initial},
    )
    if count > 1:  # summed here and not by the kernel, whose programs end in any order
        dq, dk, dbeta, dgate = (x.sum(0) for x in parts)
    return dq, dk, dv, dbeta, dgate, d_initial


def _definition(*inputs: Any) -> tuple[Tensor, Tensor | None]:
    o, final = definition(*inputs)
    return o.to(inputs[2].dtype), final


_recurrence = gpu_operator(
    f"recurrence_triton({INPUTS}, bool keep) -> (Tensor, Tensor, Tensor)", _forward, _fake_forward
)
gpu_operator(
    f"recurrence_triton_backward(Tensor d_o, Tensor? d_final, Tensor error, {INPUTS}) -> "
    f"({', '.join(['Tensor'] * 6)})",
    _backward,
    fake_backward,
)
gradients = gradients_by("recurrence_triton_backward")
differentiable("recurrence_triton", gradients, _definition, reads=[2])


def recurrence_triton(*inputs: Any) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] in the type of v and the final state [N, H, K, V] in float32.

    The inputs are those of `native.recurrence_native`, on a GPU, the bounds too.
    """
    o, final, _ = _recurrence(*inputs, needs_gradients(inputs))
    return o, final


def _step(state: Tensor, *inputs: Any) -> Tensor:
    q, k, v, beta, gate, n, scale = inputs
    o = _fake_step(state, *inputs)
    if k.dim() == 3:  # without the dimension of the factors
        k, v, beta = k[:, None], v[:, None], None if beta is None else beta[:, None]
    gate = None if gate is None else gate[:, None]
    tensors = q[:, None], k, v, beta, gate, state
    # a sequence of one token; each program reads its block of the state before it writes it
    _launch_forward(o, state, None, *tensors, None, scale, n, False)
    torch.autograd.graph.increment_version(state)  # autograd must know that it changed
    return o


def _fake_step(state: Tensor, *inputs: Any) -> Tensor:
    B, H, _, V = state.shape
    return inputs[2].new_empty(B, H, V)


recurrence_step_triton = gpu_operator(
    "recurrence_step_triton(Tensor(a!) state, Tensor q, Tensor k, Tensor v, Tensor? beta, "
    "Tensor? gate, int n, float scale) -> Tensor",
    _step,
    _fake_step,
)
