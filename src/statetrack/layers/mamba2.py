"""Mamba-2: linear attention with a gate per head from Mamba's step sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from statetrack.config import at_least, option
from statetrack.errors import UserError
from statetrack.layers.base import Mixer, MixerConfig, register
from statetrack.layers.common import (
    GatedRMSNorm,
    ShortConv,
    check_step_sizes,
    first_window,
    init_step_sizes_,
)
from statetrack.layers.operations import TENSORS, Gate, TensorOps, recordable
from statetrack.layers.transitions import Diagonal


@dataclass(frozen=True)
class Mamba2Config(MixerConfig):
    """Sizes, step sizes and range of `Mamba2`: H = expand * hidden_size / head_dim heads."""

    name: ClassVar[str] = "mamba2"
    label: ClassVar[str] = "Mamba2"
    about: ClassVar[str] = "A(x) = a I per head: exp(dt A), or 2 exp(dt A) - 1 with the switch"

    d_state: int = option(128, "states per channel")
    expand: int = option(2, "channels / hidden size")
    head_dim: int = option(64, "channels per head")
    n_groups: int = option(1, "groups of heads that share B and C")
    conv_size: int = option(
        4, "width of the causal convolution, with SiLU, on x, B, C; 0: SiLU without it"
    )
    dt_min: float = option(1e-3, "least step size at initialisation")
    dt_max: float = option(1e-1, "greatest step size at initialisation")
    dt_limit_min: float = option(0.0, "least step size ever")
    dt_limit_max: float | None = option(None, "greatest step size ever; None for no limit")
    output_norm_eps: float = option(1e-5, "epsilon of the norm of what all heads read")
    norm_by_group: bool = option(False, "normalise what the heads of each group read by itself")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("d_state", self.d_state, 1)
        at_least("expand", self.expand, 1)
        at_least("head_dim", self.head_dim, 1)
        at_least("n_groups", self.n_groups, 1)
        at_least("conv_size", self.conv_size, 0)
        check_step_sizes(self.dt_min, self.dt_max)
        at_least("dt_limit_min", self.dt_limit_min, 0)
        if self.dt_limit_max is not None:
            at_least("dt_limit_max", self.dt_limit_max, self.dt_limit_min)
        at_least("output_norm_eps", self.output_norm_eps, 0)

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(head_dim=8, d_state=5),
            cls(allow_neg_eigval=True, head_dim=4, d_state=4, n_groups=3),
            cls(head_dim=4, d_state=4, n_groups=3, norm_by_group=True),
            cls(
                allow_neg_eigval=True,
                d_state=3,
                expand=1,
                head_dim=4,
                conv_size=0,
                dt_limit_min=0.05,
                dt_limit_max=0.5,
            ),
        ]


class Mamba2Inputs(NamedTuple):
    """What Mamba-2 feeds to `ops.gated_linear_attention`: C, B, delta u and the gate."""

    u: Tensor  # [B, T, H, P]
    delta: Tensor  # [B, T, H] in float32 or wider
    B: Tensor  # [B, T, H, N]
    C: Tensor  # [B, T, H, N]
    gate: Gate  # [B, T, H]
    z: Tensor  # [B, T, H P]
    window: Tensor  # [B, conv_size - 1, H P + 2 G N]: the convolution's next window


class Mamba2State(NamedTuple):
    """A matrix for each of the H heads, and the window of the convolution."""

    S: Tensor  # [B, H, N, P]
    conv: Tensor  # [B, conv_size - 1, H P + 2 G N]: the last inputs of the convolution


@register
class Mamba2(Mixer):
    """S_t = a_t S_{t-1} + dt_t B_t x_t^T,  y_t = norm((S_t^T C_t + D x_t) SiLU(z_t)), per head.

    x, B, C (after a short causal convolution and SiLU), z and dt are projections of the input;
    a group of heads shares B and C. dt = softplus(dt + bias), within its limits, and
    a_t = exp(dt_t A) in [0, 1], or 2 exp(dt_t A) - 1 in [-1, 1] with `allow_neg_eigval`; as in
    Mamba the write stays as it is. A starts uniform in [-16, -1], as in state-spaces/mamba, not
    at -1, -2, ... as in transformers. The norm spans all channels or, with `norm_by_group`, those
    of each group, as in state-spaces/mamba and in transformers since 5.23.
    Options: see Mamba2Config.
    """

    config_class = Mamba2Config
    config: Mamba2Config
    no_weight_decay = ("A_log", "D", "dt_bias")

    def __init__(self, hidden_size: int, config: Mamba2Config | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        c = self.config
        channels = c.expand * hidden_size
        if channels % c.head_dim:
            got = f"{c.head_dim} for {c.expand} * {hidden_size} = {channels}"
            raise UserError(f"head_dim must divide expand * hidden_size; got {got}")
        self.num_heads = channels // c.head_dim
        if self.num_heads % c.n_groups:
            got = f"{c.n_groups} for {channels} / {c.head_dim} = {self.num_heads} heads"
            raise UserError(f"n_groups must divide the number of heads; got {got}")
        self.sizes = [channels, c.n_groups * c.d_state, c.n_groups * c.d_state]  # x, B, C
        self.in_proj = nn.Linear(
            hidden_size, channels + sum(self.sizes) + self.num_heads, bias=False
        )
        self.conv = ShortConv(sum(self.sizes), c.conv_size, bias=True) if c.conv_size else None
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.num_heads))
        groups = c.n_groups if c.norm_by_group else 1
        self.norm = GatedRMSNorm(channels, c.output_norm_eps, gate_first=True, groups=groups)
        self.out_proj = nn.Linear(channels, hidden_size, bias=False)
        init_step_sizes_(self.dt_bias, c.dt_min, c.dt_max)

    def init_state(self, batch: int) -> Mamba2State:
        c = self.config
        S = self.zeros(batch, self.num_heads, c.d_state, c.head_dim)
        conv = first_window(self.conv, S, sum(self.sizes))
        return Mamba2State(S, conv)

    def op_inputs(
        self, x: Tensor, state: Mamba2State | None = None, ops: TensorOps = TENSORS
    ) -> Mamba2Inputs:
        """Return what the layer feeds to `ops.gated_linear_attention` for x [B, T, hidden_size].

        Without a state, x starts a sequence.
        """
        state = self.first_state(x) if state is None else state
        c, H = self.config, self.num_heads
        z, xBC, dt = ops.split_linear(x, self.in_proj, [self.sizes[0], sum(self.sizes), H])
        (u, B, C), window = ops.short_conv(xBC, self.conv, state.conv, sizes=self.sizes)
        delta, gate = ops.step_sizes(
            dt,
            self.dt_bias,
            self.A_log,
            least=c.dt_limit_min,
            most=c.dt_limit_max,
            signed=c.allow_neg_eigval,
        )
        return Mamba2Inputs(
            ops.split_heads(u, H),
            delta,
            ops.split_heads(B, c.n_groups, H // c.n_groups),
            ops.split_heads(C, c.n_groups, H // c.n_groups),
            gate,
            z,
            window,
        )

    @recordable
    def mix(self, x: Tensor, state: Mamba2State, ops: TensorOps) -> tuple[Tensor, Mamba2State]:
        u, delta, B, C, gate, z, window = self.op_inputs(x, state, ops)
        v = ops.scale_heads(u, delta)
        y, S = ops.recurrence(C, B, v, None, gate, state.S, scale=1.0)
        y = ops.merge_heads(ops.scale_heads(u, self.D, y))
        y = ops.cast(ops.norm(y, self.norm, z), x)
        return ops.linear(y, self.out_proj), Mamba2State(S, window)

    def transitions(self, x: Tensor) -> Diagonal:
        values = self.op_inputs(x).gate.values()[..., None]
        values = values.expand(-1, -1, -1, self.config.d_state)
        return Diagonal(values, bounds=self.config.bounds)
