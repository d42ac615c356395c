"""The delta rule by definition: the oracle for every other backend."""

from __future__ import annotations

import torch
from torch import Tensor


def delta_rule_naive(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = a_t S_{t-1} + k_t beta_t (v_t - a_t S_{t-1}^T k_t)^T and o_t = S_t^T q_t.

    q, k: [B, T, H, K]; v: [B, T, H, V]; beta, decay: [B, T, H]; state: [B, H, K, V].
    """
    S = state
    outputs = []
    # unbind once: indexing x[:, t] inside the loop would make the backward pass quadratic
    steps = zip(q.unbind(1), k.unbind(1), v.unbind(1), beta.unbind(1), strict=True)
    gates = decay.unbind(1) if decay is not None else ()
    for t, (q_t, k_t, v_t, beta_t) in enumerate(steps):
        if decay is not None:
            S = gates[t][..., None, None] * S
        error = v_t - torch.einsum("bhkv,bhk->bhv", S, k_t)
        S = S + torch.einsum("bhk,bhv->bhkv", k_t, beta_t[..., None] * error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q_t))
    return torch.stack(outputs, 1), S
