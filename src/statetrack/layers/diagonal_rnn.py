"""The diagonal RNN: the smallest linear RNN that shows the effect of the eigenvalue range."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from statetrack.layers.base import Mixer, MixerConfig, register
from statetrack.layers.inverse import NO_NEGATIVE, SATURATED, refit, saturate
from statetrack.layers.operations import TensorOps, wide
from statetrack.layers.transitions import Diagonal

SHARPNESS = 10.0  # of the gate: small weights reach both of its ends


@dataclass(frozen=True)
class DiagonalRNNConfig(MixerConfig):
    """Options of the diagonal RNN."""

    name: ClassVar[str] = "diagonal_rnn"
    label: ClassVar[str] = "Diagonal RNN"
    about: ClassVar[str] = "A(x) diagonal: sigmoid(10 W x), or tanh(10 W x) with the switch"


class DiagonalInputs(NamedTuple):
    """What the diagonal RNN feeds to its scan h_t = a_t h_{t-1} + b_t, in float32 or wider."""

    a: Tensor  # [B, T, D]
    b: Tensor  # [B, T, D]
    dtype: torch.dtype  # of the output


class DiagonalRNNState(NamedTuple):
    """State of the diagonal RNN."""

    h: Tensor  # [B, D]


@register
class DiagonalRNN(Mixer):
    """h_t = a(x_t) h_{t-1} + (W_B x_t + b_B) x_t elementwise,  y_t = h_t.

    a(x) = sigmoid(10 (W_A x + b_A)) in [0, 1], or the tanh of the same in [-1, 1] with
    `allow_neg_eigval`.
    """

    config_class = DiagonalRNNConfig
    config: DiagonalRNNConfig

    def __init__(self, hidden_size: int, config: DiagonalRNNConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        self.W_A = nn.Linear(hidden_size, hidden_size)
        self.W_B = nn.Linear(hidden_size, hidden_size)
        with torch.no_grad():
            for projection in (self.W_A, self.W_B):
                projection.weight /= math.sqrt(hidden_size)

    def init_state(self, batch: int) -> DiagonalRNNState:
        return DiagonalRNNState(self.zeros(batch, self.hidden_size))

    def op_inputs(self, x: Tensor) -> DiagonalInputs:
        """Return what the layer feeds to its scan for x [B, T, hidden_size]."""
        self.check_input(x)
        logits, factor = SHARPNESS * wide(self.W_A(x)), self.W_B(x)
        a = torch.tanh(logits) if self.config.allow_neg_eigval else torch.sigmoid(logits)
        return DiagonalInputs(a, (factor * x).to(a.dtype), factor.dtype)

    def mix(
        self, x: Tensor, state: DiagonalRNNState, ops: TensorOps
    ) -> tuple[Tensor, DiagonalRNNState]:
        a, b, dtype = self.op_inputs(x)
        h = ops.linear_scan(a, b, state.h)
        return h.to(dtype), DiagonalRNNState(h[:, -1])

    def transitions(self, x: Tensor) -> Diagonal:
        return Diagonal(self.op_inputs(x).a[:, :, None], bounds=self.config.bounds)  # [B, T, 1, D]

    def hardening_obstacle(self) -> str | None:
        return None if self.config.allow_neg_eigval else NO_NEGATIVE

    @torch.no_grad()
    def memoryless(self, x: Tensor) -> Self:
        made = copy.deepcopy(self)
        for p in made.W_A.parameters():
            p.zero_()
        return made

    @torch.no_grad()
    def with_gates(self, x: Tensor, gates: Tensor, silent: Tensor) -> Self:
        gates = gates[..., 0]
        logits, factor = (x @ p.weight.T + p.bias for p in (self.W_A, self.W_B))
        logits = saturate(logits, gates, SATURATED / SHARPNESS, 0.0)
        factor = factor.masked_fill((gates == 1) | silent, 0.0)
        return self.with_config(
            {
                "W_A.weight": refit(self.W_A.weight, x, logits - self.W_A.bias),
                "W_B.weight": refit(self.W_B.weight, x, factor - self.W_B.bias),
            }
        )
