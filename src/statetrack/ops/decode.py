"""One token at a time, for decoding: the state is updated in place and nothing is differentiated.

    o = delta_rule_step(state, q, k, v, beta)        # state [B, H, K, V] float32, changed

Each function is the op of the same name for T = 1, without its time dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.operators import operator
from statetrack.ops.backends import as_number, check_shape


def delta_rule_step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
) -> Tensor:
    """q, k [B, H, K], v [B, H, V], beta, g or decay [B, H] -> o [B, H, V]."""
    return _step("delta_rule_step", 1, state, q, k, v, beta, g, decay, scale)


def delta_product_step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
) -> Tensor:
    """q [B, H, K], k [B, n, H, K], v [B, n, H, V], beta [B, n, H], g or decay [B, H] -> o."""
    if k.dim() != 4 or k.shape[1] < 1:
        raise UserError(f"delta_product_step: k must be [B, n, H, K], n >= 1; got {list(k.shape)}")
    return _step("delta_product_step", k.shape[1], state, q, k, v, beta, g, decay, scale)


def gated_linear_attention_step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
) -> Tensor:
    """q, k [B, H, K], v [B, H, V], g or decay [B, H] or [B, H, K] -> o [B, H, V]."""
    return _step("gated_linear_attention_step", 1, state, q, k, v, None, g, decay, scale)


def _step(
    op: str,
    n: int,
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    g: Tensor | None,
    decay: Tensor | None,
    scale: float | Tensor | None,
) -> Tensor:
    """k [B, n, H, K], v [B, n, H, V], beta [B, n, H]; for n = 1 without that dimension too."""
    gate = decay if g is None else g.float().exp()
    # a small step takes a few microseconds: what is checked one by one goes wrong seldom
    if (g is not None and decay is not None) or not _fits(n, state, q, k, v, beta, gate):
        _check(op, n, state, q, k, v, beta, gate, both=g is not None and decay is not None)
    if torch.is_grad_enabled():
        refuse_gradients(op, state, q, k, v, beta, gate, scale)
    scale = state.shape[2] ** -0.5 if scale is None else as_number(op, "scale", scale)
    arguments = (state, q, k, v, beta, gate, n, scale)
    o = _recurrence_step(*arguments) if library.serves(*arguments[:6]) else _torch(*arguments)
    return o if o.dtype == v.dtype else o.to(v.dtype)


def refuse_gradients(op: str, *inputs: object) -> None:
    """Raise if a gradient is asked for: a step changes its state in place and has none."""
    if any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        remedy = "call it under torch.no_grad(), or detach its inputs"
        raise UserError(f"{op} has no gradients, and an input requires them: {remedy}")


def _fits(
    n: int,
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
) -> bool:
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


def _check(
    op: str,
    n: int,
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    both: bool,
) -> None:
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


RecurrenceStep = STRUCTURES["RecurrenceStep"]


def _cpu(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    n: int,
    scale: float,
) -> Tensor:
    B, H, K, V = state.shape
    channels = K if gate is not None and gate.dim() == 3 else 1
    o = state.new_empty(B, H, V)
    q, k, v = _plain(q), _plain(k), _plain(v)
    beta = None if beta is None else _plain(beta)
    gate = None if gate is None else _plain(gate)
    arguments = RecurrenceStep(
        *map(library.pointer, (q, k, v, beta, gate, state, state, o)),
        *(B, H, K, V, n, channels, H, scale, torch.get_num_threads()),
    )
    library.call("recurrence_step", arguments)
    torch.autograd.graph.increment_version(state)  # autograd must know that it changed
    return o


def _plain(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float32 and x.is_contiguous() else x.float().contiguous()


@torch.no_grad()
def _torch(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    n: int,
    scale: float,
) -> Tensor:
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


def _fake(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    n: int,
    scale: float,
) -> Tensor:
    B, H, _, V = state.shape
    return state.new_empty(B, H, V)


_recurrence_step = operator(
    "recurrence_step(Tensor(a!) state, Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? gate, "
    "int n, float scale) -> Tensor",
    _cpu,
    _fake,
)
