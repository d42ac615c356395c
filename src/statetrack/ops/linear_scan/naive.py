"""The linear recurrence by definition: the oracle for the blocked scan."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_scan_naive(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """All h_t = a_t h_{t-1} + b_t; see `linear_scan`."""
    h = h0
    states = []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        h = a_t * h + b_t
        states.append(h)
    return torch.stack(states, 1)
