"""Gated linear attention, chunk by chunk, in plain torch.

Within a chunk that starts from the state S_0, with b_i = a_1 ... a_i and D_ij = a_{j+1} ... a_i,

    o_i = (b_i q_i)^T S_0 + sum over j <= i of <q_i, D_ij k_j> v_j,
    S_C = b_C S_0 + sum over j of (D_Cj k_j) v_j^T,

where b and D are one number for a head or one for each key channel. The products D are formed by
multiplication, never as differences of logarithms: gates may be zero or negative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statetrack.ops.chunks import decay_products, merge, split

# With a gate on each channel D is [C, C, K] for every chunk: smaller chunks then.
HEAD_CHUNK = 64
CHANNEL_CHUNK = 16


def gated_linear_attention_chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: None, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Same arguments and results as `gated_linear_attention_naive`."""
    length = q.shape[1]
    per_channel = decay is not None and decay.dim() == 4
    limit = CHANNEL_CHUNK if per_channel else HEAD_CHUNK
    q, k, v = split(q, limit), split(k, limit), split(v, limit)  # [B, N, H, C, ...]
    k_out, carry = k, None
    if decay is None:
        scores = (q @ k.mT).tril()
    elif per_channel:
        a = split(decay, limit, fill=1.0)  # [B, N, H, C, K]
        b, D = decay_products(a.mT)  # [B, N, H, K, C], [B, N, H, K, C, C]
        scores = torch.einsum("bnhik,bnhkij,bnhjk->bnhij", q, D, k)
        q = q * b.mT
        k_out = k * D[..., -1, :].mT
        carry = b[..., -1, None]  # [B, N, H, K, 1]
    else:
        b, D = decay_products(split(decay, limit, fill=1.0))  # [B, N, H, C], [B, N, H, C, C]
        scores = (q @ k.mT) * D
        q = q * b[..., None]
        k_out = k * D[..., -1, :, None]
        carry = b[..., -1, None, None]
    inside = scores @ v
    writes = k_out.mT @ v  # [B, N, H, K, V]
    S = state
    outputs = []
    carries = [None] * q.shape[1] if carry is None else carry.unbind(1)
    parts = zip(q.unbind(1), inside.unbind(1), writes.unbind(1), carries, strict=True)
    for q_n, inside_n, write, kept in parts:
        outputs.append(inside_n + q_n @ S)
        S = write + (S if kept is None else kept * S)
    return merge(torch.stack(outputs, 1), length), S
