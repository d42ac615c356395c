"""The ops with a matrix-valued state by definition: the oracles for every other backend."""

from __future__ import annotations

import torch
from torch import Tensor


def delta_product_naive(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S := a_t S, then S := S + k_tj beta_tj (v_tj - S^T k_tj)^T for each factor j, o_t = S^T q_t.

    With one factor this is the delta rule.

    q: [B, T, H, K]; k: [B, T, n, H, K]; v: [B, T, n, H, V]; beta: [B, T, n, H];
    decay: [B, T, H]; state: [B, H, K, V].
    """
    S = state
    outputs = []
    gates = decay.unbind(1) if decay is not None else ()
    # unbind once: indexing x[:, t] inside the loop would make the backward pass quadratic
    steps = zip(q.unbind(1), k.unbind(1), v.unbind(1), beta.unbind(1), strict=True)
    for t, (q_t, k_t, v_t, beta_t) in enumerate(steps):
        if decay is not None:
            S = gates[t][..., None, None] * S
        for k_j, v_j, beta_j in zip(k_t.unbind(1), v_t.unbind(1), beta_t.unbind(1), strict=True):
            error = v_j - torch.einsum("bhkv,bhk->bhv", S, k_j)
            S = S + torch.einsum("bhk,bhv->bhkv", k_j, beta_j[..., None] * error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q_t))
    return torch.stack(outputs, 1), S


def gated_linear_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, beta: None, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T and o_t = S_t^T q_t.

    q, k: [B, T, H, K]; v: [B, T, H, V]; decay: [B, T, H] or [B, T, H, K]; state: [B, H, K, V].
    """
    S = state
    outputs = []
    if decay is not None and decay.dim() == 3:
        decay = decay[..., None]
    gates = decay.unbind(1) if decay is not None else ()
    for t, (q_t, k_t, v_t) in enumerate(zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)):
        if decay is not None:
            S = gates[t][..., None] * S
        S = S + torch.einsum("bhk,bhv->bhkv", k_t, v_t)
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q_t))
    return torch.stack(outputs, 1), S
