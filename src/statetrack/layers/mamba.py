"""Mamba: a diagonal linear RNN with input-dependent gates (selective scan)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.config import at_least, option
from statetrack.layers.base import Mixer, MixerConfig, register
from statetrack.layers.common import ShortConv, check_step_sizes, first_window, init_step_sizes_
from statetrack.layers.inverse import NO_NEGATIVE, NO_STEP, SATURATED, inverse_silu, refit
from statetrack.layers.operations import TENSORS, TensorOps, recordable
from statetrack.layers.transitions import Diagonal
from statetrack.ops.selective_scan import transition


@dataclass(frozen=True)
class MambaConfig(MixerConfig):
    """Sizes, step sizes and range of `Mamba`, which has D = expand * hidden_size channels."""

    name: ClassVar[str] = "mamba"
    label: ClassVar[str] = "Mamba"
    about: ClassVar[str] = "A(x) diagonal: exp(delta A), or 2 exp(delta A) - 1 with the switch"

    d_state: int = option(16, "states per channel")
    expand: int = option(2, "channels / hidden size")
    conv_size: int = option(4, "width of the causal convolution, with SiLU; 0: SiLU without it")
    dt_rank: int | None = option(None, "rank of the step size's projection; None: hidden size / 16")
    dt_min: float = option(1e-3, "least step size at initialisation")
    dt_max: float = option(1e-1, "greatest step size at initialisation")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("d_state", self.d_state, 1)
        at_least("expand", self.expand, 1)
        at_least("conv_size", self.conv_size, 0)
        if self.dt_rank is not None:
            at_least("dt_rank", self.dt_rank, 1)
        check_step_sizes(self.dt_min, self.dt_max)

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(d_state=3),
            cls(allow_neg_eigval=True, d_state=16, dt_rank=2),
            cls(allow_neg_eigval=True, d_state=5, conv_size=0, expand=1),
            cls(d_state=1, conv_size=2),
        ]


class MambaInputs(NamedTuple):
    """What Mamba feeds to `ops.selective_scan`."""

    u: Tensor  # [B, T, D]
    delta: Tensor  # [B, T, D] in float32 or wider: bfloat16 errors would grow with every token
    A: Tensor  # [D, N], in the dtype of delta
    B: Tensor  # [B, T, N]
    C: Tensor  # [B, T, N]
    z: Tensor  # [B, T, D]
    window: Tensor  # [B, conv_size - 1, D]: the convolution's next window


class MambaState(NamedTuple):
    """N numbers for each of the D channels, and the window of the convolution."""

    h: Tensor  # [B, D, N]
    conv: Tensor  # [B, conv_size - 1, D]: the last inputs of the convolution


@register
class Mamba(Mixer):
    """h_t = a_t h_{t-1} + delta_t B_t u_t,  y_t = (C_t . h_t + D u_t) SiLU(z_t).

    u (after a short causal convolution and SiLU) and z are projections of x; delta, B and C are
    projections of u. a_t = exp(delta_t A) in [0, 1], or 2 exp(delta_t A) - 1 in [-1, 1] with
    `allow_neg_eigval`. Options: see MambaConfig.
    """

    config_class = MambaConfig
    config: MambaConfig
    no_weight_decay = ("A_log", "D")
    shared_step_size = True

    def __init__(self, hidden_size: int, config: MambaConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        c = self.config
        self.channels = c.expand * hidden_size
        self.dt_rank = c.dt_rank or math.ceil(hidden_size / 16)
        self.in_proj = nn.Linear(hidden_size, 2 * self.channels, bias=False)
        self.conv = ShortConv(self.channels, c.conv_size, bias=True) if c.conv_size else None
        self.x_proj = nn.Linear(self.channels, self.dt_rank + 2 * c.d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.channels)
        self.A_log = nn.Parameter(torch.empty(self.channels, c.d_state))
        self.D = nn.Parameter(torch.ones(self.channels))
        self.out_proj = nn.Linear(self.channels, hidden_size, bias=False)
        self._init_dynamics()

    @torch.no_grad()
    def _init_dynamics(self) -> None:
        c = self.config
        self.A_log.copy_(torch.arange(1, c.d_state + 1, dtype=torch.float32).log())
        bound = self.dt_rank**-0.5
        self.dt_proj.weight.uniform_(-bound, bound)
        init_step_sizes_(self.dt_proj.bias, c.dt_min, c.dt_max)

    def init_state(self, batch: int) -> MambaState:
        h = self.zeros(batch, self.channels, self.config.d_state)
        conv = first_window(self.conv, h, self.channels)
        return MambaState(h, conv)

    def op_inputs(
        self, x: Tensor, state: MambaState | None = None, ops: TensorOps = TENSORS
    ) -> MambaInputs:
        """Return what the layer feeds to `ops.selective_scan` for x [B, T, hidden_size].

        Without a state, x starts a sequence.
        """
        state = self.first_state(x) if state is None else state
        u, z = ops.split_linear(x, self.in_proj, [self.channels] * 2)
        (u,), window = ops.short_conv(u, self.conv, state.conv)
        sizes = [self.dt_rank, *[self.config.d_state] * 2]
        low, B, C = ops.split_linear(u, self.x_proj, sizes)
        delta, _ = ops.step_sizes(ops.linear(low, self.dt_proj))
        return MambaInputs(u, delta, ops.rates(self.A_log, delta), B, C, z, window)

    @recordable
    def mix(self, x: Tensor, state: MambaState, ops: TensorOps) -> tuple[Tensor, MambaState]:
        u, delta, A, B, C, z, window = self.op_inputs(x, state, ops)
        signed = self.config.allow_neg_eigval
        y, h = ops.selective_scan(u, delta, A, B, C, self.D, z, state.h, signed=signed)
        return ops.linear(y, self.out_proj), MambaState(h, window)

    def transitions(self, x: Tensor) -> Diagonal:
        inputs, c = self.op_inputs(x), self.config
        values = transition(inputs.delta, inputs.A, c.allow_neg_eigval)  # [B, T, D, N]
        return Diagonal(values, bounds=c.bounds)

    def hardening_obstacle(self) -> str | None:
        return None if self.config.allow_neg_eigval else NO_NEGATIVE

    @property
    def output_projection(self) -> nn.Linear:
        return self.out_proj

    @property
    def conv_delays(self) -> range:
        return range(self.conv_width)  # all of the recurrence comes after the convolution

    @torch.no_grad()
    def without_conv(self, x: Tensor, conv_outputs: Sequence[Tensor], delay: int = 0) -> Self:
        u, z = self.in_proj.weight.chunk(2)
        u = refit(u, x, inverse_silu(torch.cat(list(conv_outputs), -1)), exact=False)
        weights = {"in_proj.weight": torch.cat([u, z])}
        if delay:
            weights["conv.weight"] = F.pad(u.new_ones(self.channels, 1), (0, delay))
            weights["conv.bias"] = u.new_zeros(self.channels)
        return self.with_config(weights, conv_size=delay and delay + 1)

    @torch.no_grad()
    def memoryless(self, x: Tensor) -> Self:
        made = copy.deepcopy(self)
        made.dt_proj.weight.zero_()
        made.dt_proj.bias.fill_(-1000.0)  # softplus of it is 0: the state stays 0
        return made

    @torch.no_grad()
    def with_gates(self, x: Tensor, gates: Tensor, silent: Tensor) -> Self:
        """See Mixer. Step sizes of 0 keep; a rate so large that any other step size flips flips."""
        n = len(x)
        u = F.silu(x @ self.in_proj.weight[: self.channels].T)
        low = self.x_proj.weight[: self.dt_rank] @ u.T  # [rank, n]
        logits = (self.dt_proj.weight @ low).T + self.dt_proj.bias  # [n, D]
        logits = torch.where((gates == 1).all(-1) | silent, NO_STEP, logits)
        step = F.softplus(logits)[:, :, None]
        flips, zeros = gates == -1, gates == 0  # [n, D, N]
        smallest = torch.where(flips, step, torch.inf).amin(0)
        flipped = flips.any(0) & ~silent[:, None]
        rate = torch.where(flipped, SATURATED / smallest, self.A_log.exp())
        smallest = torch.where(zeros, step, torch.inf).amin(0)
        rate = torch.where(zeros.any(0), math.log(2) / smallest, rate)  # 2 exp(-log 2) - 1 = 0
        # the step size's projection becomes: which of the n inputs it is, then its logits
        which = refit(x.new_zeros(n, u.shape[1]), u, torch.eye(n, dtype=x.dtype))
        weights = {
            "x_proj.weight": torch.cat([which, self.x_proj.weight[self.dt_rank :]]),
            "dt_proj.weight": logits.T,
            "dt_proj.bias": torch.zeros_like(self.dt_proj.bias),
            "A_log": rate.log(),
        }
        return self.with_config(weights, dt_rank=n)
