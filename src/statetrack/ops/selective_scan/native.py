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
from statetrack.kernels.operators import differentiable, empty_like, operator

CHUNK = 64
"""Tokens from one state that is kept for the backward pass to the next."""


SelectiveScan = STRUCTURES["SelectiveScan"]


SelectiveScanStep = STRUCTURES["SelectiveScanStep"]


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float().contiguous()


def _arguments(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial: Tensor | None,
    bounds: Tensor | None,
    negative: bool,
) -> tuple[ctypes.Structure, list[Tensor | None]]:
    """The structure, and the tensors that it points to."""
    rows = [None if x is None else viewable(x.unsqueeze(2)) for x in (u, delta, B, C, z)]
    dense = [_dense(A), _dense(D), _dense(initial)]
    x = SelectiveScan(
        *map(view, rows),
        *map(pointer, dense),
        bounds=pointer(bounds),
        sequences=len(u) if bounds is None else len(bounds) - 1,
        T=u.shape[1],
        D=u.shape[2],
        N=A.shape[1],
        chunk=CHUNK,
        negative=negative,
        threads=torch.get_num_threads(),
    )
    return x, [*rows, *dense, bounds]


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
    dy, d_final = dy.float().contiguous(), _dense(d_final)
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


def _definition(*inputs: Any) -> tuple[Tensor, Tensor | None]:
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


def _step(state: Tensor, *inputs: Any) -> Tensor:
    y = _fake_step(state, *inputs)
    work = state.float().contiguous()
    *tensors, negative = inputs
    alive = [_dense(x) for x in tensors]
    rows, channels, N = state.shape
    threads = torch.get_num_threads()
    addresses = map(pointer, (work, work, *alive, y))
    sizes = (rows, channels, N, negative, False, threads)
    call("selective_scan_step", SelectiveScanStep(*addresses, *sizes))
    if work is not state:
        state.copy_(work)
    return y


def _fake_step(state: Tensor, u: Tensor, *others: Any) -> Tensor:
    return u.new_empty(u.shape, dtype=torch.float32)


_INPUTS = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z"
_STATES = "Tensor? initial, Tensor? bounds, bool negative"
_selective_scan = operator(
    f"selective_scan({_INPUTS}, {_STATES}, bool final, bool keep) -> (Tensor, Tensor, Tensor)",
    _forward,
    _fake_forward,
)
operator(
    f"selective_scan_backward(Tensor dy, Tensor? d_final, Tensor checkpoints, {_INPUTS}, {_STATES})"
    f" -> ({', '.join(['Tensor'] * 8)})",
    _backward,
    _fake_backward,
)
operator(
    f"selective_scan_step(Tensor(a!) state, {_INPUTS}, bool negative) -> Tensor", _step, _fake_step
)
differentiable("selective_scan", _gradients, _definition, reads=[2])


def selective_scan_native(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial: Tensor | None,
    bounds: Tensor | None,
    *,
    allow_neg_eigval: bool,
    output_final_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """y and the final state as `selective_scan` gives them, both float32.

    bounds: [S + 1] int64 on the CPU, where packed sequences begin and end.
    """
    tensors = (u, delta, A, B, C, D, z, initial)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    y, state, _ = _selective_scan(*tensors, bounds, allow_neg_eigval, output_final_state, keep)
    return y, state if output_final_state else None


def selective_scan_step_native(
    state: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    allow_neg_eigval: bool,
) -> Tensor:
    """y of one token, in float32; `state` is updated in place."""
    return torch.ops.statetrack.selective_scan_step(
        state, u, delta, A, B, C, D, z, allow_neg_eigval
    )
