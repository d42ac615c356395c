"""h_t = A_t h_{t-1} + b_t for dense matrices, in blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def affine_scan(A: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A [B, T, n, n], b [B, T, n, V], h [B, n, V] -> all h_t [B, T, n, V] and the last one.

    Within blocks of about sqrt(T) tokens the maps from a block's beginning are multiplied, for all
    blocks at once; then only the blocks' ends run one after the other.
    """
    batch, length, n, _ = A.shape
    columns = b.shape[-1]
    size = max(1, math.isqrt(length))
    blocks = math.ceil(length / size)
    padding = blocks * size - length
    eye = torch.eye(n, dtype=A.dtype, device=A.device)
    if padding:
        A = torch.cat([A, eye.expand(batch, padding, n, n)], 1)
        b = torch.cat([b, b.new_zeros(batch, padding, n, columns)], 1)
    A, b = A.view(batch, blocks, size, n, n), b.view(batch, blocks, size, n, columns)
    both = torch.cat([eye.expand(batch, blocks, n, n), b.new_zeros(batch, blocks, n, columns)], -1)
    maps = []  # [n, n + V] from the beginning of a block: h -> P h + c
    zeros = A.new_zeros(batch, blocks, n, n)
    for A_t, b_t in zip(A.unbind(2), b.unbind(2), strict=True):
        both = A_t @ both + torch.cat([zeros, b_t], -1)
        maps.append(both)
    starts = []
    for end in both.unbind(1):
        starts.append(h)
        h = end[..., :n] @ h + end[..., n:]
    start = torch.stack(starts, 1)[:, :, None]  # [B, blocks, 1, n, V]
    stacked = torch.stack(maps, 2)
    states = stacked[..., :n] @ start + stacked[..., n:]
    return states.flatten(1, 2)[:, :length], h
