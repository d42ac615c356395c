"""Sequences cut into chunks, for the parallel forms in plain torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def split(x: Tensor, limit: int, fill: float = 0.0) -> Tensor:
    """[B, T, H, ...] -> [B, N, H, C, ...] in even chunks of at most `limit` tokens.

    40 tokens are 2 x 20, not 32 + 8; what does not divide is filled up at the end.
    """
    length = x.shape[1]
    chunks = math.ceil(length / limit)
    size = math.ceil(length / chunks)
    padding = chunks * size - length
    if padding:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, padding), value=fill)
    return x.unflatten(1, (chunks, size)).transpose(2, 3)


def merge(x: Tensor, length: int) -> Tensor:
    """The reverse of `split`: [B, N, H, C, ...] -> [B, T, H, ...]."""
    return x.transpose(2, 3).flatten(1, 2)[:, :length]


def decay_products(a: Tensor) -> tuple[Tensor, Tensor]:
    """[..., C] -> b [..., C] with b_i = a_1...a_i, and D [..., C, C] with D_ij = a_{j+1}...a_i."""
    size = a.shape[-1]
    row = torch.zeros_like(a)
    rows, b = [], []
    product: Tensor | None = None
    unit = torch.eye(size, dtype=a.dtype, device=a.device)
    for i, a_i in enumerate(a.unbind(-1)):
        row = row * a_i[..., None] + unit[i]
        rows.append(row)
        product = a_i if product is None else product * a_i
        b.append(product)
    return torch.stack(b, -1), torch.stack(rows, -2)
