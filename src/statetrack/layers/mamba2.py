"""Mamba-2: linear attention with one gate for each head, and Mamba's step sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.config import at_least, option
from statetrack.errors import UserError
from statetrack.layers.base import Mixer, MixerConfig, register
from statetrack.layers.common import (
    Gate,
    GatedRMSNorm,
    ShortConv,
    check_step_sizes,
    first_window,
    init_step_sizes_,
)
from statetrack.layers.transitions import Diagonal
from statetrack.ops import gated_linear_attention
from statetrack.ops.program import Program


@dataclass(frozen=True)
class Mamba2Config(MixerConfig):
    """Options of Mamba-2."""

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


class Mamba2State(NamedTuple):
    """What Mamba-2 remembers."""

    S: Tensor  # [B, H, N, P]
    conv: Tensor  # [B, conv_size - 1, H P + 2 G N]: the last inputs of the convolution


@register
class Mamba2(Mixer):
    """S_t = a_t S_{t-1} + dt_t B_t x_t^T,  y_t = norm((S_t^T C_t + D x_t) SiLU(z_t)), per head.

    x, B, C (after a short causal convolution and SiLU), z and dt are projections of the input;
    a group of heads shares B and C. dt = softplus(dt + bias), within its limits, and
    a_t = exp(dt_t A) in [0, 1], or 2 exp(dt_t A) - 1 in [-1, 1] with `allow_neg_eigval`; as in
    Mamba the write stays as it is. A starts uniform in [-16, -1], as in state-spaces/mamba, not
    at -1, -2, ... as in transformers. The norm spans all channels, as in transformers;
    state-spaces/mamba, if there is more than one group, normalises each by itself.
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
        self.norm = GatedRMSNorm(channels, c.output_norm_eps, gate_first=True)
        self.out_proj = nn.Linear(channels, hidden_size, bias=False)
        init_step_sizes_(self.dt_bias, c.dt_min, c.dt_max)

    def init_state(self, batch: int) -> Mamba2State:
        c = self.config
        S = self.zeros(batch, self.num_heads, c.d_state, c.head_dim)
        conv = first_window(self.conv, S, sum(self.sizes))
        return Mamba2State(S, conv)

    def _project(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z [B, T, H P], what the convolution takes and dt [B, T, H] in float32 or wider."""
        z, xBC, dt = self.in_proj(u).split([self.sizes[0], sum(self.sizes), self.num_heads], -1)
        dt = F.softplus(dt.to(torch.promote_types(dt.dtype, torch.float32)) + self.dt_bias)
        return z, xBC, dt.clamp(self.config.dt_limit_min, self.config.dt_limit_max)

    def _gate(self, dt: Tensor) -> Gate:
        g = -dt * torch.exp(self.A_log.to(dt.dtype))
        return Gate.of(g, signed=self.config.allow_neg_eigval)

    def _for_heads(self, x: Tensor) -> Tensor:
        """[B, T, G N] -> [B, T, H, N]: every head gets what is its group's."""
        groups = self.config.n_groups
        x = x.unflatten(-1, (groups, 1, -1)).expand(-1, -1, -1, self.num_heads // groups, -1)
        return x.flatten(2, 3)

    def mix(
        self, x: Tensor, state: Mamba2State, valid: Tensor | None, backend: str = "auto"
    ) -> tuple[Tensor, Mamba2State]:
        z, xBC, dt = self._project(x)
        if valid is not None:
            dt = dt.masked_fill(~valid[..., None], 0.0)  # then a = 1, and nothing is written
        window = state.conv
        if self.conv:
            parts, window = self.conv(xBC, window, valid, sizes=self.sizes, backend=backend)
        else:
            parts = F.silu(xBC).split(self.sizes, -1)
        u = parts[0].unflatten(-1, (self.num_heads, -1))  # [B, T, H, P]
        B, C = (self._for_heads(part) for part in parts[1:])
        gate = self._gate(dt)
        y, S = gated_linear_attention(
            C,
            B,
            dt[..., None] * u,
            gate.g,
            decay=gate.decay,
            scale=1.0,
            initial_state=state.S,
            output_final_state=True,
            backend=backend,
        )
        assert S is not None
        y = self.norm((y + self.D[:, None] * u).flatten(-2), z, backend)
        return self.out_proj(y.to(x.dtype)), Mamba2State(S, window)

    def record(self, p: Program, x: Tensor, state: Mamba2State) -> tuple[Tensor, Mamba2State]:
        c, H = self.config, self.num_heads
        parts = self.in_proj.weight.split([self.sizes[0], sum(self.sizes), H])
        z, xBC, dt = (p.linear(x, weight) for weight in parts)
        delta, gate = p.step_sizes(
            dt,
            self.dt_bias,
            self.A_log,
            least=c.dt_limit_min,
            most=c.dt_limit_max,
            signed=c.allow_neg_eigval,
        )
        conv = (self.conv.weight, self.conv.bias, state.conv) if self.conv else (None,)
        (u, B, C), window = p.short_conv(xBC, *conv, sizes=self.sizes)
        y, S = p.recurrence(
            C,
            B,
            p.scale_heads(u, delta, heads=H),
            None,
            gate,
            state.S,
            key_heads=c.n_groups,
            scale=1.0,
        )
        y = p.scale_heads(u, self.D, y, heads=H)
        y = p.norm(y, self.norm.weight, self.norm.eps, z, gate_first=True)
        window = window if self.conv else state.conv
        return p.linear(y, self.out_proj.weight), Mamba2State(S, window)

    def transitions(self, x: Tensor) -> Diagonal:
        self.check_input(x)
        _, _, dt = self._project(x)
        values = self._gate(dt).values()
        assert values is not None
        values = values[..., None].expand(-1, -1, -1, self.config.d_state)
        return Diagonal(values, bounds=self.config.bounds)
