"""The delta rule, chunk by chunk, in plain torch.

Within a chunk of C tokens that starts from the state S_0, let b_i = a_1 ... a_i and
D_ij = a_{j+1} ... a_i for j <= i. Then u_i = beta_i (v_i - a_i S_{i-1}^T k_i) solves the unit
lower triangular system

    (I + L) U = beta V - (beta b K) S_0,     L_ij = beta_i D_ij <k_i, k_j>  for j < i,

so U = U_0 - W S_0 with U_0 and W found for all chunks at once, and only

    O = b Q S_0 + (Q K^T . D) U,     S_C = b_C S_0 + (D_C K)^T U

runs from chunk to chunk. The products D are formed by multiplication, never as differences of
logarithms: gates may be zero or negative, and their gradients stay exact there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statetrack.ops.chunks import decay_products, merge, split

MAX_CHUNK = 32


def delta_rule_chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Same arguments and results as `delta_rule_naive`."""
    length = q.shape[1]
    q, k, v, beta = (split(x, MAX_CHUNK) for x in (q, k, v, beta))  # [B, N, H, C, ...]
    beta = beta[..., None]
    inner = k @ k.mT  # [B, N, H, C, C]
    scores = q @ k.mT
    weighted_k = beta * k
    k_out = k  # what of each key is left at the end of its chunk
    carry = None  # what of the incoming state is left there
    if decay is not None:
        b, D = decay_products(split(decay, MAX_CHUNK, fill=1.0))
        inner, scores = inner * D, scores * D
        weighted_k, q = b[..., None] * weighted_k, b[..., None] * q
        k_out = D[..., -1, :, None] * k
        carry = b[..., -1, None, None].unbind(1)
    lower = (beta * inner).tril(-1)
    solved = torch.linalg.solve_triangular(
        lower, torch.cat([beta * v, weighted_k], -1), upper=False, unitriangular=True
    )
    U0, W = solved.split([v.shape[-1], k.shape[-1]], -1)

    outputs = []
    S = state  # [B, H, K, V]
    parts = zip(*(x.unbind(1) for x in (U0, W, q, scores.tril(), k_out)), strict=True)
    for n, (u0, w, q_n, scores_n, k_n) in enumerate(parts):
        u = u0 - w @ S
        outputs.append(q_n @ S + scores_n @ u)
        S = (S if carry is None else carry[n] * S) + k_n.mT @ u
    return merge(torch.stack(outputs, 1), length), S
