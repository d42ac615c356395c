"""Gated DeltaNet: DeltaNet with a scalar gate on the whole state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from statetrack.config import option
from statetrack.layers.base import register
from statetrack.layers.common import init_step_sizes_, xavier_
from statetrack.layers.delta_net import DeltaNet, DeltaNetConfig, DeltaProjections
from statetrack.layers.inverse import NO_STEP
from statetrack.layers.operations import Gate, TensorOps


@dataclass(frozen=True)
class GatedDeltaNetConfig(DeltaNetConfig):
    """Options of Gated DeltaNet."""

    name: ClassVar[str] = "gated_delta_net"
    label: ClassVar[str] = "Gated DeltaNet"
    about: ClassVar[str] = "A(x) = a (I - beta k k^T) with a scalar gate a per head"

    expand_v: float = option(2.0, "value size of all heads together / hidden size")
    conv_size: int = option(
        4, "width of the causal convolution, with SiLU, on q, k, v; 0: SiLU without it"
    )
    output_gate: bool = option(True, "multiply the output by SiLU of a projection of x")
    allow_neg_gate: bool = option(False, "the gate a in [-1,1] instead of [0,1]")

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(num_heads=3),
            cls(allow_neg_eigval=True, num_heads=2, num_v_heads=6, expand_v=1.0),
            cls(allow_neg_gate=True, num_heads=3, conv_size=0, output_gate=False),
        ]

    @property
    def title(self) -> str:
        return super().title + (", gate [-1,1]" if self.allow_neg_gate else "")

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of DeltaNet, which a gate in [0, 1] keeps; [-1, 1] with `allow_neg_gate`."""
        return (-1.0, 1.0) if self.allow_neg_gate else super().bounds


@register
class GatedDeltaNet(DeltaNet):
    """S_t = a_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, with DeltaNet's q, k, v, beta.

    a_t = exp(-exp(A_log) softplus(w x + dt_bias)) in [0, 1], or 2 exp(...) - 1 in [-1, 1] with
    `allow_neg_gate`; o_t = norm(S_t^T q_t / sqrt(K)) * SiLU(W x_t). Without the convolution q and k
    get the SiLU, too. Options: see GatedDeltaNetConfig.

    A has the eigenvalue a (1 - beta) along k and a for everything orthogonal to k. So
    `allow_neg_eigval` makes only the one along k negative: reflections, I - 2 k k^T. With
    `allow_neg_gate` alone all eigenvalues have one sign: A can be -I, but never a reflection (for a
    key size above 1). With both each of the two kinds has its own sign.
    """

    config_class = GatedDeltaNetConfig
    config: GatedDeltaNetConfig
    no_weight_decay = ("A_log", "dt_bias")
    qk_silu = True

    def __init__(self, hidden_size: int, config: GatedDeltaNetConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        self.a_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        xavier_(self.a_proj.weight)
        self.A_log = nn.Parameter((16 * (1 - torch.rand(self.num_v_heads))).log())  # A in (0, 16]
        self.dt_bias = nn.Parameter(torch.empty(self.num_v_heads))
        init_step_sizes_(self.dt_bias, 1e-3, 1e-1)

    def projections(self) -> DeltaProjections:
        return super().projections()._replace(gate=self.a_proj.weight)

    def _gate(self, x: Tensor, ops: TensorOps) -> Gate:
        logits, signed = ops.linear(x, self.a_proj), self.config.allow_neg_gate
        return ops.step_sizes(logits, self.dt_bias, self.A_log, signed=signed)[1]

    @torch.no_grad()
    def open_gates(self, heads: Tensor) -> None:
        self.a_proj.weight[heads] = 0.0
        self.dt_bias[heads] = NO_STEP
