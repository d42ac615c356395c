"""The selective scan by definition: the oracle for every other backend."""

from __future__ import annotations

import torch
from torch import Tensor


def transition(delta: Tensor, A: Tensor, allow_neg_eigval: bool) -> Tensor:
    """The diagonal of the transition: exp(delta A) in [0, 1], or 2 exp(delta A) - 1 in [-1, 1].

    delta: [..., D]; A: [D, N]; result: [..., D, N].
    """
    a = torch.exp(delta[..., None] * A)
    return 2 * a - 1 if allow_neg_eigval else a


def selective_scan_naive(
    u: Tensor, delta: Tensor, B: Tensor, C: Tensor, state: Tensor, *, A: Tensor, negative: bool
) -> tuple[Tensor, Tensor]:
    """h_t = a_t h_{t-1} + delta_t B_t u_t and y_t = C_t . h_t, with a_t = transition(delta_t, A).

    u, delta: [B, T, D]; B, C: [B, T, N]; A: [D, N]; state: [B, D, N].
    """
    h = state
    outputs = []
    steps = zip(u.unbind(1), delta.unbind(1), B.unbind(1), C.unbind(1), strict=True)
    for u_t, delta_t, B_t, C_t in steps:
        write = torch.einsum("bd,bn->bdn", delta_t * u_t, B_t)
        h = transition(delta_t, A, negative) * h + write
        outputs.append(torch.einsum("bdn,bn->bd", h, C_t))
    return torch.stack(outputs, 1), h
