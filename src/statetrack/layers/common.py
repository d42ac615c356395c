"""Modules, initialisations and checks that several layers share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.errors import UserError
from statetrack.layers.operations import TENSORS, TensorOps
from statetrack.ops import rms_norm, short_conv


class ShortConv(nn.Module):
    """Causal depthwise convolution: y_t = silu(sum_w weight[:, w] x_{t - width + 1 + w} (+ bias)).

    Its state is the last `width - 1` inputs, [B, width - 1, D]. See `ops.short_conv` for `sizes`
    and `head_sizes`.
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
        """Return the window before the first input: zeros."""
        return self.weight.new_zeros(batch, self.width - 1, self.weight.shape[0])

    def forward(
        self,
        x: Tensor,
        window: Tensor,
        mask: Tensor | None,
        *,
        sizes: Sequence[int] | None = None,
        head_sizes: Sequence[int] | None = None,
        backend: str = "auto",
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Convolve x [B, T, D], which follows `window`: the parts of y and the next window."""
        return short_conv(
            x,
            self.weight,
            self.bias,
            silu=True,
            sizes=sizes,
            head_sizes=head_sizes,
            window=window,
            mask=mask,
            backend=backend,
        )


def first_window(conv: ShortConv | None, state: Tensor, channels: int) -> Tensor:
    """Return the first window of a layer whose state has another tensor `state` [B, ...].

    Without a convolution it is empty, [B, 0, channels].
    """
    batch = state.shape[0]
    return conv.init_state(batch) if conv else state.new_zeros(batch, 0, channels)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, backend: str = "auto") -> Tensor:
        """Normalise the last dimension."""
        return rms_norm(x, self.weight, eps=self.eps, backend=backend)


class HeadNorm(nn.Module):
    """Layer norm of each head by itself, with a gain and no bias, in float32 or wider."""

    def __init__(self, num_heads: int, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_heads * size))  # a vector: no weight decay

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_heads, size] -> the same."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        y = F.layer_norm(wide, wide.shape[-1:], eps=self.eps)
        return (y * self.weight.view(x.shape[-2:])).to(x.dtype)


class HeadwiseLinear(nn.Module):
    """A block-diagonal linear map: each of `blocks` groups of features has its own matrix.

    The layer initialises `weight`.
    """

    def __init__(self, features: int, blocks: int) -> None:
        super().__init__()
        if blocks < 1 or features % blocks:
            raise UserError(f"{blocks} blocks do not divide {features} features")
        size = features // blocks
        self.weight = nn.Parameter(torch.empty(blocks, size, size))  # [block, out, in]

    def forward(self, x: Tensor) -> Tensor:
        """[..., features] -> the same."""
        x = x.unflatten(-1, self.weight.shape[::2])
        return torch.einsum("...bi,boi->...bo", x, self.weight).flatten(-2)


class GatedRMSNorm(nn.Module):
    """rms_norm(x) * silu(gate), or rms_norm(x * silu(gate)) with `gate_first`; in float32.

    Each of `groups` equal parts of the last dimension is normalised by itself.
    """

    def __init__(self, size: int, eps: float, gate_first: bool, groups: int = 1) -> None:
        super().__init__()
        self.eps = eps
        self.gate_first = gate_first
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, gate: Tensor, backend: str = "auto") -> Tensor:
        """x and gate [..., size], normalised over the last dimension; in the type of `x`."""
        wide = torch.promote_types(x.dtype, torch.float32)
        y, factor = x.to(wide), F.silu(gate.to(wide))
        if self.gate_first:
            y = self._normalise(y * factor, backend)
        else:
            y = self._normalise(y, backend) * factor
        return y.to(x.dtype)

    def _normalise(self, x: Tensor, backend: str) -> Tensor:
        if self.groups == 1:
            return rms_norm(x, self.weight, eps=self.eps, backend=backend)
        parts = x.unflatten(-1, (self.groups, -1))
        unit = self.weight.new_ones(parts.shape[-1])
        return rms_norm(parts, unit, eps=self.eps, backend=backend).flatten(-2) * self.weight


class BetaGate(nn.Module):
    """beta = top * sigmoid(W x), the beta of each Householder factor.

    I - beta k k^T has the eigenvalue 1 - beta along k, so top = 1 covers [0, 1] and top = 2
    covers [-1, 1]. With `stretch` d > 0, beta = top * clip((1 + 2 d) sigmoid(W x) - d, 0, 1):
    then exactly 0 (identity) and exactly `top` are reached.
    """

    def __init__(self, hidden_size: int, num_betas: int, top: float, stretch: float) -> None:
        super().__init__()
        self.top = top
        self.stretch = stretch
        self.proj = nn.Linear(hidden_size, num_betas, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden_size] -> [B, T, num_betas]."""
        return self.formula(x, TENSORS)

    def formula(self, x: Tensor, ops: TensorOps) -> Tensor:
        """The same with the operations of `ops`."""
        return ops.sigmoid_gate(ops.linear(x, self.proj), self.top, stretch=self.stretch)


def xavier_(weight: Tensor) -> None:
    """Initialise in place: Xavier-uniform with the gain of flash-linear-attention."""
    bound = 2**-2.5 * math.sqrt(6 / sum(weight.shape))
    with torch.no_grad():
        weight.uniform_(-bound, bound)


def small_init_(weight: Tensor, size: int) -> None:
    """Initialise in place as xLSTM's inputs: N(0, 2 / (5 size))."""
    with torch.no_grad():
        weight.normal_(std=math.sqrt(2 / (5 * size)))


def wang_init_(weight: Tensor, size: int, num_layers: int) -> None:
    """Initialise in place as xLSTM's outputs of `size` features (Wang): N(0, 4 / (L^2 size))."""
    with torch.no_grad():
        weight.normal_(std=2 / (num_layers * math.sqrt(size)))


def head_size(
    option: str, hidden_size: int, expand: float, num_heads: int, heads: str = "num_heads"
) -> int:
    """Return the channels of each head if all have hidden_size * expand.

    `option` and `heads` are the names of the options `expand` and `num_heads` for the error.
    """
    size = hidden_size * expand
    whole = round(size)
    if whole < 1 or abs(size - whole) > 1e-6 or whole % num_heads:
        raise UserError(
            f"{heads} must divide hidden_size * {option}; got {num_heads} heads for "
            f"{hidden_size} * {expand:g} = {size:g}"
        )
    return whole // num_heads


def check_step_sizes(dt_min: float, dt_max: float) -> None:
    """Raise unless dt_min and dt_max are valid for `init_step_sizes_`."""
    if not 0 < dt_min <= dt_max < math.inf:
        raise UserError(f"need finite 0 < dt_min <= dt_max; got {dt_min} and {dt_max}")


@torch.no_grad()
def init_step_sizes_(bias: Tensor, dt_min: float, dt_max: float) -> None:
    """Set the bias so that softplus(bias) is log-uniform in [dt_min, dt_max], at least 1e-4."""
    low, high = math.log(dt_min), math.log(dt_max)
    dt = torch.empty(bias.shape).uniform_(low, high).exp().clamp(min=1e-4)
    bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
