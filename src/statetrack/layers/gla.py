"""GLA: linear attention with a gate on each key channel."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
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
    first_window,
    head_size,
    xavier_,
)
from statetrack.layers.inverse import NO_NEGATIVE, SATURATED, refit, saturate
from statetrack.layers.operations import TENSORS, Gate, TensorOps, recordable
from statetrack.layers.transitions import Diagonal


@dataclass(frozen=True)
class GLAConfig(MixerConfig):
    """Options of GLA."""

    name: ClassVar[str] = "gla"
    label: ClassVar[str] = "GLA"
    about: ClassVar[str] = "A(x) diagonal: a gate per key channel, a, or 2 a - 1 with the switch"

    num_heads: int = option(4, "heads, each with its own state")
    expand_k: float = option(0.5, "key size of all heads together / hidden size")
    expand_v: float = option(1.0, "value size of all heads together / hidden size")
    conv_size: int = option(
        0, "width of the causal convolution, with SiLU, on q, k, v; 0 for neither"
    )
    gate_low_rank_dim: int = option(16, "rank of the decay's projection")
    gate_logit_normalizer: float = option(1.0, "n in a = sigmoid(W x)^(1/n)")
    output_norm_eps: float = option(1e-6, "epsilon of the norm of what each head reads")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_heads", self.num_heads, 1)
        at_least("expand_k", self.expand_k, 0)
        at_least("expand_v", self.expand_v, 0)
        at_least("conv_size", self.conv_size, 0)
        at_least("gate_low_rank_dim", self.gate_low_rank_dim, 1)
        at_least("output_norm_eps", self.output_norm_eps, 0)
        if not 0 < self.gate_logit_normalizer < float("inf"):
            got = self.gate_logit_normalizer
            raise UserError(f"gate_logit_normalizer must be a finite number above 0; got {got}")

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(num_heads=3, gate_logit_normalizer=16.0),
            cls(allow_neg_eigval=True, num_heads=2, gate_low_rank_dim=5),
            cls(allow_neg_eigval=True, num_heads=3, conv_size=4, expand_k=1.0, expand_v=2.0),
        ]


class GLAInputs(NamedTuple):
    """What GLA feeds to `ops.gated_linear_attention`."""

    q: Tensor  # [B, T, H, K]
    k: Tensor  # [B, T, H, K]
    v: Tensor  # [B, T, H, V]
    gate: Gate  # [B, T, H, K]: the diagonal of A(x)
    window: Tensor  # [B, conv_size - 1, 2 H K + H V]: the convolution's next window


class GLAState(NamedTuple):
    """A matrix for each of the H heads, and the window of the convolution."""

    S: Tensor  # [B, H, K, V]
    conv: Tensor  # [B, conv_size - 1, 2 H K + H V]: the last inputs of the convolution


@register
class GLA(Mixer):
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T,  o_t = norm(S_t^T q_t / sqrt(K)) SiLU(W_g x_t).

    q, k, v are projections of x, with a short causal convolution and SiLU if `conv_size` is not 0.
    a = sigmoid(W x + b)^(1/n) in [0, 1] with W of low rank, or 2 a - 1 in [-1, 1] with
    `allow_neg_eigval`, which changes nothing else.

    n is `gate_logit_normalizer`, with or without the switch. The default 1 is the paper's gate: it
    starts in the middle of either range, as near to -1 as to 1. flash-linear-attention has n = 16,
    which its checkpoints need: it forgets slowly, but 2 a - 1 is then negative only for logits
    below -11, and below -0.9 only for those below -48. Options: see GLAConfig.
    """

    config_class = GLAConfig
    config: GLAConfig

    def __init__(self, hidden_size: int, config: GLAConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        c = self.config
        self.key_size = head_size("expand_k", hidden_size, c.expand_k, c.num_heads)
        self.value_size = head_size("expand_v", hidden_size, c.expand_v, c.num_heads)
        self.sizes = [c.num_heads * s for s in (self.key_size, self.key_size, self.value_size)]
        keys, _, values = self.sizes
        self.qkv_proj = nn.Linear(hidden_size, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes), c.conv_size, bias=False) if c.conv_size else None
        down = nn.Linear(hidden_size, c.gate_low_rank_dim, bias=False)
        up = nn.Linear(c.gate_low_rank_dim, keys)
        self.decay_proj = nn.Sequential(down, up)
        self.gate_proj = nn.Linear(hidden_size, values, bias=False)
        self.norm = GatedRMSNorm(self.value_size, c.output_norm_eps, gate_first=False)
        self.o_proj = nn.Linear(values, hidden_size, bias=False)
        for part in (
            *torch.split(self.qkv_proj.weight, self.sizes),
            down.weight,
            up.weight,
            self.gate_proj.weight,
            self.o_proj.weight,
        ):
            xavier_(part)
        nn.init.zeros_(up.bias)

    def init_state(self, batch: int) -> GLAState:
        S = self.zeros(batch, self.config.num_heads, self.key_size, self.value_size)
        conv = first_window(self.conv, S, sum(self.sizes))
        return GLAState(S, conv)

    def op_inputs(
        self, x: Tensor, state: GLAState | None = None, ops: TensorOps = TENSORS
    ) -> GLAInputs:
        """Return what the layer feeds to `ops.gated_linear_attention` for x [B, T, hidden_size].

        Without a state, x starts a sequence.
        """
        state = self.first_state(x) if state is None else state
        c, window = self.config, state.conv
        if self.conv:
            qkv = ops.linear(x, self.qkv_proj)
            parts, window = ops.short_conv(qkv, self.conv, window, sizes=self.sizes)
        else:
            parts = ops.split_linear(x, self.qkv_proj, self.sizes)
        q, k, v = (ops.split_heads(part, c.num_heads) for part in parts)
        logits = ops.split_heads(ops.linear(x, self.decay_proj), c.num_heads)
        gate = ops.sigmoid_decay(logits, root=c.gate_logit_normalizer, signed=c.allow_neg_eigval)
        return GLAInputs(q, k, v, gate, window)

    @recordable
    def mix(self, x: Tensor, state: GLAState, ops: TensorOps) -> tuple[Tensor, GLAState]:
        q, k, v, gate, window = self.op_inputs(x, state, ops)
        o, S = ops.recurrence(q, k, v, None, gate, state.S)
        o = ops.merge_heads(ops.norm(o, self.norm, ops.linear(x, self.gate_proj)))
        return ops.linear(o, self.o_proj), GLAState(S, window)

    def transitions(self, x: Tensor) -> Diagonal:
        return Diagonal(self.op_inputs(x).gate.values(), bounds=self.config.bounds)

    def hardening_obstacle(self) -> str | None:
        return None if self.config.allow_neg_eigval else NO_NEGATIVE

    @property
    def output_projection(self) -> nn.Linear:
        return self.o_proj

    @torch.no_grad()
    def without_conv(self, x: Tensor, conv_outputs: Sequence[Tensor], delay: int = 0) -> Self:
        weight = refit(self.qkv_proj.weight, x, torch.cat(list(conv_outputs), -1), exact=False)
        return self.with_config({"qkv_proj.weight": weight}, conv_size=0)

    @torch.no_grad()
    def memoryless(self, x: Tensor) -> Self:
        made = copy.deepcopy(self)
        _, up, bias = made.decay_proj.parameters()
        up.zero_()
        bias.fill_(self._zero_logit())
        return made

    @torch.no_grad()
    def with_gates(self, x: Tensor, gates: Tensor, silent: Tensor) -> Self:
        gates, n = gates[..., 0], len(x)
        end = SATURATED * self.config.gate_logit_normalizer
        down, up, bias = self.decay_proj.parameters()
        logits = saturate(x @ down.T @ up.T + bias, gates, end, self._zero_logit())
        q, k, v = self.qkv_proj.weight.split(self.sizes)
        k = refit(k, x, (x @ k.T).masked_fill((gates == 1) | silent, 0.0))
        weights = {
            "qkv_proj.weight": torch.cat([q, k, v]),
            # which of the n inputs it is, then the logits of that one
            "decay_proj.0.weight": refit(torch.zeros_like(x), x, torch.eye(n, dtype=x.dtype)),
            "decay_proj.1.weight": logits.T,
            "decay_proj.1.bias": torch.zeros_like(bias),
        }
        return self.with_config(weights, gate_low_rank_dim=n)

    def _zero_logit(self) -> float:
        """Return the logit of a gate of 0: 2 sigmoid(logit)^(1/n) - 1 = 0."""
        log_half = -math.log(2) * self.config.gate_logit_normalizer
        return log_half - math.log(-math.expm1(log_half))
