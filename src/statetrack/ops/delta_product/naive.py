"""The product of delta-rule steps by definition: the oracle for every other backend."""

from __future__ import annotations

import torch
from torch import Tensor


def delta_product_naive(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S := a_t S, then S := S + k_tj beta_tj (v_tj - S^T k_tj)^T for each factor j, o_t = S^T q_t.

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
