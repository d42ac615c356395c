"""The definition of SwiGLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def swiglu_naive(x: Tensor) -> Tensor:
    """silu(gate) * up for x = [gate, up]."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up
