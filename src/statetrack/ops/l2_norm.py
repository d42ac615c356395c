"""Vectors of length 1: the keys and queries of the delta rule."""

from __future__ import annotations

import torch
from torch import Tensor


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension, in float32 or wider.

    Not in bfloat16: a key even 0.5 % too long makes I - 2 k k^T an expansion. Divided by a root,
    not multiplied by its inverse: so a vector along an axis has length 1 to the last bit.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)
