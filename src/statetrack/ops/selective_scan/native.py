"""The selective scan on the native kernels, as torch operators.

Skip connection and gate are part of the kernels. Forward and backward are both operators with fake
implementations, so torch.compile traces through them in both directions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer, view, viewable
from statetrack.kernels.operators import differentiable, empty_like, needs_gradients, operator

CHUNK = 32
"""Tokens from one state that is kept for the backward pass to the next."""


SelectiveScan = STRUCTURES["SelectiveScan"]


def dense(x: Tensor | None) -> Tensor | None:
    """A tensor in float32, row after row."""
    return None if x is None else x.float().contiguous()


def _arguments(*inputs: Any) -> tuple[ctypes.Structure, list[Tensor | None]]:
    """The structure, and the tensors that it points to."""
    u, delta, A, B, C, D, z, initial, bounds, negative = inputs
    rows = [None if x is None else viewable(x.unsqueeze(2)) for x in (u, delta, B, C, z)]
    others = [dense(A), dense(D), dense(initial)]
    x = SelectiveScan(
        *map(view, rows),
        *map(pointer, others),
        bounds=pointer(bounds),
        sequences=len(u) if bounds is None else len(bounds) - 1,
        T=u.shape[1],
        D=u.shape[2],
        N=A.shape[1],
        chunk=CHUNK,
        negative=negative,
        threads=torch.get_num_threads(),
    )
    return x, [*rows, *others, bounds]


def _forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    y, state, checkpoints = _fake_forward(*inputs)
    x, alive = _arguments(*inputs[:-2])
    x.y, x.final, x.checkpoints = pointer(y), pointer(state), pointer(checkpoints)
    call("selective_scan_forward", x)
    del alive
    return y, state, checkpoints


def _fake_forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    u, _, A, *_, bounds, _, final, keep = inputs
    batch, length, channels = u.shape
    N = A.shape[1]
    y = u.new_empty(u.shape, dtype=torch.float32)
    sequences = batch if bounds is None else bounds.shape[0] - 1
    state = u.new_empty((sequences, channels, N) if final else (0,), dtype=torch.float32)
    # chunks but the first of each sequence; of packed sequences, as many as there can be
    kept = batch * ((length - 1) // CHUNK) if bounds is None else length // CHUNK
    checkpoints = u.new_empty((kept, N, channels) if keep else (0,), dtype=torch.float32)
    return y, state, checkpoints


def _backward(
    dy: Tensor, d_final: Tensor | None, checkpoints: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    grads = _fake_backward(dy, d_final, checkpoints, *inputs)
    x, alive = _arguments(*inputs)
    dy, d_final = dy.float().contiguous(), dense(d_final)
    x.dy, x.d_final, x.checkpoints = pointer(dy), pointer(d_final), pointer(checkpoints)
    names = ("du", "ddelta", "dA", "dB", "dC", "dskip", "dz", "d_initial")
    for name, grad in zip(names, grads, strict=True):
        setattr(x, name, pointer(grad))
    call("selective_scan_backward", x)
    del alive
    return grads


def _fake_backward(
    dy: Tensor, d_final: Tensor | None, checkpoints: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    return empty_like(inputs[:8])


def _gradients(
    grads: Sequence[Any], inputs: Sequence[Any], kept: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    dy, d_final, _ = grads
    *given, _, keep = inputs
    if not keep:
        raise RuntimeError("the native scan was told not to keep what its gradients need")
    if dy is None:
        dy = torch.zeros_like(inputs[0])
    return torch.ops.statetrack.selective_scan_backward(dy, d_final, *kept, *given)


def definition(*inputs: Any) -> tuple[Tensor, Tensor | None]:
    """The operator as a composition of differentiable torch operations, in float32."""
    from statetrack.ops.selective_scan import selective_scan  # which imports this module

    *tensors, bounds, negative, final, _ = inputs
    *tensors, initial = (None if x is None else x.float() for x in tensors)
    return selective_scan(
        *tensors,
        allow_neg_eigval=negative,
        initial_state=initial,
        output_final_state=final,
        cu_seqlens=bounds,
        backend="torch",
    )


INPUTS = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z"
STATES = "Tensor? initial, Tensor? bounds, bool negative"
_selective_scan = operator(
    f"selective_scan({INPUTS}, {STATES}, bool final, bool keep) -> (Tensor, Tensor, Tensor)",
    _forward,
    _fake_forward,
)
operator(
    f"selective_scan_backward(Tensor dy, Tensor? d_final, Tensor checkpoints, {INPUTS}, {STATES})"
    f" -> ({', '.join(['Tensor'] * 8)})",
    _backward,
    _fake_backward,
)
differentiable("selective_scan", _gradients, definition, reads=[2])


def selective_scan_native(*inputs: Any) -> tuple[Tensor, Tensor | None]:
    """y and the final state as `selective_scan` gives them, both float32.

    The inputs, in the operator's order, are u, delta, A, B, C, D, z and initial as in
    `selective_scan`; bounds [S + 1] int64 on the CPU, where packed sequences begin and end; whether
    eigenvalues may be negative; and whether the final state is wanted.
    """
    y, state, _ = _selective_scan(*inputs, needs_gradients(inputs))
    return y, state if inputs[-1] else None
