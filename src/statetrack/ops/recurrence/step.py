"""One token of the ops with a matrix-valued state, which changes in place, without gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer, serves
from statetrack.kernels.operators import operator
from statetrack.ops.backends import as_number, check_shape, choose, refuse_gradients

RecurrenceStep = STRUCTURES["RecurrenceStep"]


def run_step(
    op: str,
    n: int,
    tensors: tuple[Any, ...],
    g: Tensor | None,
    decay: Tensor | None,
    scale: float | Tensor | None,
    backend: str,
) -> Tensor:
    """Check the arguments of a public step and run it on the backend of its choice.

    `tensors` are state, q, k [B, n, H, K], v [B, n, H, V] and beta [B, n, H] or None; for n = 1
    without that dimension too.
    """
    state, _, _, v, _ = tensors
    both = g is not None and decay is not None
    inputs = *tensors, decay if g is None else g.float().exp()
    # a small step takes a few microseconds: the checks with messages run only if this one fails
    if both or not _fits(n, *inputs):
        _check(op, n, both, *inputs)
    if torch.is_grad_enabled():
        refuse_gradients(op, *inputs, scale)
    scale = state.shape[2] ** -0.5 if scale is None else as_number(op, "scale", scale)
    if not (backend == "auto" and serves(*inputs)):
        backend = choose(op, backend, ("torch", "native", "triton"), *inputs)
    if backend == "triton":
        from statetrack.ops.recurrence.gpu import recurrence_step_triton  # imports Triton

        o = recurrence_step_triton(*inputs, n, scale)
    else:
        o = (_torch if backend == "torch" else _recurrence_step)(*inputs, n, scale)
    return o if o.dtype == v.dtype else o.to(v.dtype)


def _fits(n: int, state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Any, gate: Any) -> bool:
    """Whether all is as `_check` wants it, and in float32."""
    if state.dim() != 4 or not state.is_contiguous():
        return False
    B, H, K, V = state.shape
    many = (B, n, H) if k.dim() == 4 else (B, H)
    float32 = torch.float32
    return (
        state.dtype is q.dtype is k.dtype is v.dtype is float32
        and q.shape == (B, H, K)
        and k.shape == (*many, K)
        and v.shape == (*many, V)
        and (beta is None or (beta.shape == many and beta.dtype is float32))
        and (gate is None or (gate.shape == (B, H) and gate.dtype is float32))
    )


def _check(op: str, n: int, both: bool, *inputs: Any) -> None:
    state, q, k, v, beta, gate = inputs
    if both:
        raise UserError(f"{op} takes g (the logarithm of the gate) or decay (the gate), not both")
    if state.dim() != 4 or state.dtype != torch.float32 or not state.is_contiguous():
        raise UserError(f"{op} updates its state in place: a contiguous float32 [B, H, K, V]")
    B, H, K, V = state.shape
    check_shape(op, "q", q, "[B, H, K]", (B, H, K))
    many, dims = ((B, n, H), "[B, n, H") if k.dim() == 4 else ((B, H), "[B, H")
    check_shape(op, "k", k, f"{dims}, K]", (*many, K))
    check_shape(op, "v", v, f"{dims}, V]", (*many, V))
    if beta is not None:
        check_shape(op, "beta", beta, f"{dims}]", many)
    if gate is not None:
        channels = gate.dim() == 3 and beta is None
        dims, shape = ("[B, H, K]", (B, H, K)) if channels else ("[B, H]", (B, H))
        check_shape(op, "the gate", gate, dims, shape)


def _cpu(state: Tensor, *inputs: Any) -> Tensor:
    *tensors, n, scale = inputs
    B, H, K, V = state.shape
    gate = tensors[-1]
    channels = K if gate is not None and gate.dim() == 3 else 1
    o = state.new_empty(B, H, V)
    tensors = [None if x is None else _plain(x) for x in tensors]
    arguments = RecurrenceStep(
        *map(pointer, (*tensors, state, state, o)),
        *(B, H, K, V, n, channels, H, scale, torch.get_num_threads()),
    )
    call("recurrence_step", arguments)
    torch.autograd.graph.increment_version(state)  # autograd must know that it changed
    return o


def _plain(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float32 and x.is_contiguous() else x.float().contiguous()


@torch.no_grad()
def _torch(state: Tensor, *inputs: Any) -> Tensor:
    q, k, v, beta, gate, n, scale = inputs
    if gate is not None:
        state.mul_(gate.view(*gate.shape, *[1] * (4 - gate.dim())))
    B, H, K, V = state.shape
    k, v = k.float().view(B, n, H, K), v.float().view(B, n, H, V)
    for j in range(n):
        k_j, u = k[:, j], v[:, j]
        if beta is not None:
            strength = beta.float().view(B, n, H, 1)[:, j]
            u = strength * (u - (k_j[..., None, :] @ state)[..., 0, :])
        state.addcmul_(k_j[..., None], u[..., None, :])
    return scale * (q.float()[..., None, :] @ state)[..., 0, :]


def _fake(state: Tensor, *inputs: Any) -> Tensor:
    B, H, _, V = state.shape
    return state.new_empty(B, H, V)


_recurrence_step = operator(
    "recurrence_step(Tensor(a!) state, Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? gate, "
    "int n, float scale) -> Tensor",
    _cpu,
    _fake,
)
