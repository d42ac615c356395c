"""The delta rule, chunk by chunk, in plain torch, with a hand-written backward pass.

Within a chunk of C tokens that starts from the state S_0, let b_i = a_1 ... a_i and
D_ij = a_{j+1} ... a_i for j <= i. Then u_i = beta_i (v_i - a_i S_{i-1}^T k_i) solves the unit
lower triangular system

    (I + L) U = beta V - (beta b K) S_0,     L_ij = beta_i D_ij <k_i, k_j>  for j < i,

so U = U_0 - W S_0 with U_0 and W found for all chunks at once, and only

    O = b Q S_0 + (Q K^T . D) U,     S_C = b_C S_0 + (D_C K)^T U

runs from chunk to chunk. Backwards likewise: only dU and the gradient of the state go from chunk to
chunk, everything else follows for all chunks at once. The products D are formed by multiplication,
never as differences of logarithms: gates may be zero or negative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.transforms import gradients_through, transformed
from statetrack.ops.chunks import decay_products, merge, split

MAX_CHUNK = 32


def delta_product_chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Same arguments and results as `delta_product_naive`.

    A token with n factors becomes n steps of which only the first has a gate and only the last is
    read.
    """
    n = k.shape[2]
    if n > 1:
        nothing = q.new_zeros(*q.shape[:2], n - 1, *q.shape[2:])
        q = torch.cat([nothing, q[:, :, None]], 2).flatten(1, 2)
        if decay is not None:
            ones = decay.new_ones(*decay.shape[:2], n - 1, decay.shape[2])
            decay = torch.cat([decay[:, :, None], ones], 2).flatten(1, 2)
    k, v, beta = (x.flatten(1, 2) for x in (k, v, beta))
    length = q.shape[1]
    q, k, v, beta = (split(x, MAX_CHUNK) for x in (q, k, v, beta))  # [B, N, H, C, ...]
    if decay is not None:
        decay = split(decay, MAX_CHUNK, fill=1.0)
    run = _outputs if transformed() else ChunkedDeltaRule.apply
    o, state = run(q, k, v, beta[..., None], decay, state)
    return merge(o, length)[:, n - 1 :: n], state


class ChunkedDeltaRule(torch.autograd.Function):
    """q, k, v [B, N, H, C, ...], beta [B, N, H, C, 1], decay [B, N, H, C], state [B, H, K, V]."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        decay: Tensor | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        o, S, *kept = _forward(q, k, v, beta, decay, state)
        ctx.save_for_backward(q, k, v, beta, decay, state, *kept)
        return o, S

    @staticmethod
    def backward(ctx: Any, dO: Tensor, dS: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, W, U, states = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed(dO, dS):
            return tuple(gradients_through(_outputs, inputs, (dO, dS)))
        q, k, v, beta, decay, _ = inputs
        b, D = (None, None) if decay is None else decay_products(decay)
        products = k @ k.mT
        system = _times(beta * products, D).tril(-1)
        scores = q @ k.mT
        read, written = _scaled(q, b), _last_scaled(k, D)

        # from chunk to chunk: dU and the gradient of the state
        dU = _times(scores, D).tril().mT @ dO
        from_output = read.mT @ dO
        after = []  # the gradient of the state behind each chunk
        for n in reversed(range(q.shape[1])):
            after.append(dS)
            dU[:, n] += written[:, n] @ dS
            kept = dS if b is None else b[:, n, :, -1, None, None] * dS
            dS = kept + from_output[:, n] - W[:, n].mT @ dU[:, n]
        G = torch.stack(after[::-1], 1)

        # the rest at once; R = beta V - (beta b K) S_0 is the right side of the system
        dR = _solve(system, dU, transposed=True)
        d_system = -(dR @ U.mT).tril(-1)
        d_scores = (dO @ U.mT).tril()
        d_read, d_written = dO @ states.mT, U @ G.mT
        d_weighted = -dR @ states.mT  # of beta b K

        d_products = _times(beta * d_system, D)
        through = _times(d_scores, D)
        dq = through @ k + _scaled(d_read, b)
        dk = through.mT @ q + (d_products + d_products.mT) @ k
        dk += _last_scaled(d_written, D) + beta * _scaled(d_weighted, b)
        dv = beta * dR
        dbeta = (dR * v).sum(-1, keepdim=True) + (d_weighted * _scaled(k, b)).sum(-1, keepdim=True)
        dbeta += (d_system * _times(products, D)).sum(-1, keepdim=True)
        d_decay = None
        if decay is not None:
            db = (d_read * q).sum(-1) + (d_weighted * beta * k).sum(-1)
            db[..., -1] += (G * states).sum((-1, -2))
            dD = d_scores * scores + d_system * beta * products
            dD[..., -1, :] += (d_written * k).sum(-1)
            with torch.enable_grad():
                a = decay.detach().requires_grad_()
                (d_decay,) = torch.autograd.grad(decay_products(a), a, (db, dD))
        return dq, dk, dv, dbeta, d_decay, dS


def _forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, ...]:
    """o and the final state; W, U and the states before each chunk, for the backward pass."""
    b, D = (None, None) if decay is None else decay_products(decay)
    system = _times(beta * (k @ k.mT), D).tril(-1)  # L
    right = torch.cat([beta * v, _scaled(beta * k, b)], -1)
    U0, W = _solve(system, right).split([v.shape[-1], k.shape[-1]], -1)
    scores = _times(q @ k.mT, D).tril()
    read, written = _scaled(q, b), _last_scaled(k, D)

    S = state
    states, U, o = [], [], []
    for n in range(q.shape[1]):
        states.append(S)
        U.append(U0[:, n] - W[:, n] @ S)
        o.append(read[:, n] @ S + scores[:, n] @ U[n])
        kept = S if b is None else b[:, n, :, -1, None, None] * S
        S = kept + written[:, n].mT @ U[n]
    return torch.stack(o, 1), S, W, torch.stack(U, 1), torch.stack(states, 1)


def _outputs(*inputs: Any) -> tuple[Tensor, ...]:
    """The same by differentiable operations alone."""
    return _forward(*inputs)[:2]


def _times(matrix: Tensor, D: Tensor | None) -> Tensor:
    return matrix if D is None else matrix * D


def _scaled(rows: Tensor, b: Tensor | None) -> Tensor:
    return rows if b is None else b[..., None] * rows


def _last_scaled(rows: Tensor, D: Tensor | None) -> Tensor:
    """What is left of each row at the end of its chunk."""
    return rows if D is None else D[..., -1, :, None] * rows


def _solve(lower: Tensor, right: Tensor, transposed: bool = False) -> Tensor:
    """(I + lower)^-1 right, or its transpose times right."""
    system = lower.mT if transposed else lower
    return torch.linalg.solve_triangular(system, right, upper=transposed, unitriangular=True)
