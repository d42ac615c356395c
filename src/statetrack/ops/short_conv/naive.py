"""The definition of the short convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.ops.l2_norm import l2_normalize


def short_conv_naive(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor | None,
    lengths: Tensor | None,
    sizes: list[int],
    head_sizes: list[int],
    silu: bool,
    eps: float,
) -> tuple[list[Tensor], Tensor]:
    """The parts of y and the next window; see `short_conv`. On CPUs shifted sums beat conv1d."""
    batch, length, channels = x.shape
    width = weight.shape[1]
    if window is None:
        window = x.new_zeros(batch, width - 1, channels)
    padded = torch.cat([window, x], 1)
    y = padded[:, :length] * weight[:, 0]
    for w in range(1, width):
        y = y + padded[:, w : w + length] * weight[:, w]
    if bias is not None:
        y = y + bias
    if silu:
        y = F.silu(y)
    parts = [
        l2_normalize(part.unflatten(-1, (-1, head)), eps).flatten(-2) if head else part
        for part, head in zip(y.split(sizes, -1), head_sizes, strict=True)
    ]
    if lengths is None:
        return parts, padded[:, length:]
    # the last inputs that exist: positions count .. count + width - 2 of the padded row
    last = lengths[:, None, None] + torch.arange(width - 1, device=x.device)[None, :, None]
    return parts, padded.gather(1, last.expand(-1, -1, channels))
