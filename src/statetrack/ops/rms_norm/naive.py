"""The definition of RMSNorm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm_naive(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return F.rms_norm(x, weight.shape, weight, eps)
