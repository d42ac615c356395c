"""Small parts that several layers use."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.errors import UserError


class ShortConv(nn.Module):
    """Causal depthwise convolution: y_t = sum_w weight[:, w] x_{t - width + 1 + w} (+ bias).

    Its state is the last `width - 1` inputs, [B, width - 1, D]. Written as shifted sums: on CPUs
    that is faster than the general convolution, forward and backward.
    """

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        super().__init__()
        if width < 1:
            raise UserError(f"a convolution's width must be at least 1; got {width}")
        self.width = width
        bound = width**-0.5  # PyTorch's default for a depthwise convolution
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def init_state(self, batch: int) -> Tensor:
        """Zeros: nothing came before."""
        return self.weight.new_zeros(batch, self.width - 1, self.weight.shape[0])

    def forward(self, x: Tensor, window: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [B, T, D] after the inputs in `window`; returns y and the next window."""
        length = x.shape[1]
        padded = torch.cat([window.to(x.dtype), x], 1)
        weight = self.weight.to(x.dtype)
        y = padded[:, :length] * weight[:, 0]
        for w in range(1, self.width):
            y = y + padded[:, w : w + length] * weight[:, w]
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
        if valid is None:
            return y, padded[:, length:]
        # the last inputs that exist: positions count .. count + width - 2 of the padded row
        count = valid.sum(1)[:, None, None]
        last = count + torch.arange(self.width - 1, device=x.device)[None, :, None]
        return y, padded.gather(1, last.expand(-1, -1, x.shape[2]))


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        weight = self.weight.to(wide.dtype)
        return F.rms_norm(wide, weight.shape, weight, self.eps).to(x.dtype)


class BetaGate(nn.Module):
    """beta = top * sigmoid(W x), one per head: how far a generalised Householder reaches.

    I - beta k k^T has the eigenvalue 1 - beta along k, so top = 1 covers [0, 1] and top = 2
    covers [-1, 1]. With `stretch` d > 0, beta = top * clip((1 + 2 d) sigmoid(W x) - d, 0, 1):
    then exactly 0 (identity) and exactly `top` (reflection) are within reach.
    """

    def __init__(self, hidden_size: int, num_heads: int, top: float, stretch: float) -> None:
        super().__init__()
        self.top = top
        self.stretch = stretch
        self.proj = nn.Linear(hidden_size, num_heads, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden_size] -> [B, T, H]."""
        s = torch.sigmoid(self.proj(x).to(torch.promote_types(x.dtype, torch.float32)))
        if self.stretch:
            s = ((1 + 2 * self.stretch) * s - self.stretch).clamp(0, 1)
        return self.top * s


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension, in float32 or wider.

    Not in bfloat16: a key even 0.5 % too long makes I - 2 k k^T an expansion.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def xavier_(weight: Tensor, gain: float) -> None:
    """Xavier-uniform initialisation in place."""
    bound = gain * math.sqrt(6 / sum(weight.shape))
    with torch.no_grad():
        weight.uniform_(-bound, bound)
