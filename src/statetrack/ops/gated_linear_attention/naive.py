"""Gated linear attention by definition: the oracle for every other backend."""

from __future__ import annotations

import torch
from torch import Tensor


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
    # unbind once: indexing x[:, t] inside the loop would make the backward pass quadratic
    for t, (q_t, k_t, v_t) in enumerate(zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)):
        if decay is not None:
            S = gates[t][..., None] * S
        S = S + torch.einsum("bhk,bhv->bhkv", k_t, v_t)
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q_t))
    return torch.stack(outputs, 1), S
