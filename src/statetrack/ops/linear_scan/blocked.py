"""The linear recurrence on a blocked parallel scan.

The sequence is cut into blocks. All blocks advance together, one position at a time, from a zero
state; then the states between blocks are chained, and each block receives what its incoming state
contributes. With blocks of sqrt(T) tokens that is 2 sqrt(T) sequential steps instead of T, and
linear work. The backward pass is the same scan in reverse.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.transforms import transformed
from statetrack.ops.linear_scan.naive import linear_scan_naive


class LinearScan(torch.autograd.Function):
    """h_t = a_t h_{t-1} + b_t for a, b [B, T, ...] from h_0 [B, ...]; returns all h_t."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
        h = _scan(a, b, h0)
        ctx.save_for_backward(a, h, h0)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h, h0 = ctx.saved_tensors
        # the gradient runs backwards: db_t = dh_t + a_{t+1} db_{t+1}
        following = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1)
        scan = linear_scan_naive if transformed(dh) else LinearScan.apply
        db = scan(following.flip(1), dh.flip(1), torch.zeros_like(h0)).flip(1)
        previous = torch.cat([h0[:, None], h[:, :-1]], 1)
        return db * previous, db, a[:, 0] * db[:, 0]


def _scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    length = a.shape[1]
    size = max(1, math.isqrt(length))
    blocks = math.ceil(length / size)
    h = b.new_empty(b.shape[0], blocks * size, *b.shape[2:])
    through = torch.empty_like(h)  # the product of a over the block so far
    h[:, :length], h[:, length:] = b, 0
    through[:, :length], through[:, length:] = a, 1
    h, through = h.unflatten(1, (blocks, size)), through.unflatten(1, (blocks, size))
    for i in range(1, size):
        h[:, :, i].addcmul_(through[:, :, i], h[:, :, i - 1])
        through[:, :, i].mul_(through[:, :, i - 1])
    incoming = h0
    for n in range(blocks):
        h[:, n].addcmul_(through[:, n], incoming[:, None])
        incoming = h[:, n, -1]
    return h.flatten(1, 2)[:, :length]
