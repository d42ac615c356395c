"""The definition of softplus."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def softplus_naive(x: Tensor) -> Tensor:
    """log(1 + e^x)."""
    return F.softplus(x)
