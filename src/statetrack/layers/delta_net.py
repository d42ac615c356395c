"""DeltaNet: linear attention whose writes follow the delta rule.

The other layers on the delta rule derive from it: `DeltaProduct` takes several steps of the rule
per token, `GatedDeltaNet` multiplies the state by a scalar gate first, `GatedDeltaProduct` both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from statetrack.config import at_least, option
from statetrack.errors import UserError
from statetrack.layers.base import MixerConfig, register
from statetrack.layers.common import (
    BetaGate,
    GatedRMSNorm,
    RMSNorm,
    ShortConv,
    first_window,
    head_size,
    xavier_,
)
from statetrack.layers.delta_hardening import DeltaHardening
from statetrack.layers.operations import TENSORS, Gate, TensorOps, recordable
from statetrack.layers.transitions import HouseholderProduct


@dataclass(frozen=True)
class DeltaNetConfig(MixerConfig):
    """Options of DeltaNet."""

    name: ClassVar[str] = "delta_net"
    label: ClassVar[str] = "DeltaNet"
    has_beta: ClassVar[bool] = True
    about: ClassVar[str] = "A(x) = I - beta k k^T, one generalised Householder matrix per head"

    num_heads: int = option(4, "heads, each with its own state")
    num_v_heads: int | None = option(
        None, "heads of v, beta and state, sharing the q and k of num_heads; None: num_heads"
    )
    expand_k: float = option(1.0, "key size of all heads together / hidden size")
    expand_v: float = option(1.0, "value size of all heads together / hidden size")
    conv_size: int = option(
        4, "width of the causal convolution, with SiLU, on q, k, v; 0: SiLU on v, and no more"
    )
    output_gate: bool = option(False, "multiply the output by SiLU of a projection of x")
    output_norm_eps: float = option(1e-6, "epsilon of the norm of what each head reads")
    beta_stretch: float = option(0.0, "d > 0 stretches beta past its ends by d and clips it")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_heads", self.num_heads, 1)
        if self.num_v_heads is not None and (
            self.num_v_heads < 1 or self.num_v_heads % self.num_heads
        ):
            got = f"{self.num_v_heads} for {self.num_heads} heads"
            raise UserError(f"num_v_heads must be a multiple of num_heads; got {got}")
        at_least("expand_k", self.expand_k, 0)
        at_least("expand_v", self.expand_v, 0)
        at_least("conv_size", self.conv_size, 0)
        at_least("output_norm_eps", self.output_norm_eps, 0)
        at_least("beta_stretch", self.beta_stretch, 0)

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(num_heads=3),
            cls(allow_neg_eigval=True, num_heads=2),
            cls(allow_neg_eigval=True, num_heads=3, conv_size=0, expand_k=0.5, expand_v=2.0),
            cls(num_heads=1, conv_size=1, beta_stretch=0.3),
        ]

    @property
    def factors(self) -> int:
        """The number of Householder factors per token."""
        return 1

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval of the real parts of all eigenvalues of A(x); both ends are reached.

        For beta in [0, 2] no factor expands. For beta in [0, 1] the factors A_j are positive
        semidefinite, so a product of two has no negative eigenvalue. Of n > 2 the product has the
        eigenvalues of R A_{n-1} ... A_1 R, R the root of A_n, hence numbers from the numerical
        range of A_{n-1} ... A_1 times at most 1. Each A_j is a mean of I and a projection: that
        range lies in the hull of those of products of at most n - 1 projections. A chain of
        projections turns a vector by angles t_i while it shrinks by each cos t_i; to point against
        the first vector the angles, with the last one left to its opposite, sum to at least pi, and
        then the product of the n cosines is at most cos(pi / n)^n.
        """
        if self.allow_neg_eigval:
            return -1.0, 1.0
        n = self.factors
        return (0.0 if n <= 2 else -(math.cos(math.pi / n) ** n)), 1.0


class DeltaProjections(NamedTuple):
    """The weights of a layer's projections of x [D]; n factors, H heads."""

    q: Tensor  # [key heads, K, D]
    k: Tensor  # [n, key heads, K, D]
    v: Tensor  # [n, H, V, D]
    beta: Tensor  # [n, H, D]: the logits
    gate: Tensor | None  # [H, D]: the step sizes before their bias and softplus


class DeltaInputs(NamedTuple):
    """What the layers on the delta rule feed to `ops.delta_product`; n factors per token."""

    q: Tensor  # [B, T, H, K]: of length 1
    k: Tensor  # [B, T n, H, K]: of length 1
    v: Tensor  # [B, T n, H, V]
    beta: Tensor  # [B, T n, H]
    gate: Gate | None  # [B, T, H]
    window: Tensor  # [B, conv_size - 1, D]: the convolution's next window


class DeltaNetState(NamedTuple):
    """State of the layers on the delta rule."""

    S: Tensor  # [B, H, K, V]
    conv: Tensor  # [B, conv_size - 1, D]: the last inputs of the convolution, q, k and v


@register
class DeltaNet(DeltaHardening):
    """S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,  o_t = norm(S_t^T q_t / sqrt(K)).

    q, k, v are projections of x, each with a short causal convolution and SiLU; q and k are then
    normalised to length 1. Without the convolution only v gets the SiLU. beta = sigmoid(w x), or
    2 sigmoid(w x) with `allow_neg_eigval`, which turns the eigenvalue along k from [0, 1] into
    [-1, 1]. Options: see DeltaNetConfig.

    >>> layer = DeltaNet(16, num_heads=2, allow_neg_eigval=True)
    >>> y, state = layer(torch.randn(2, 10, 16))
    >>> y_t, state = layer.step(torch.randn(2, 16), state)
    >>> y.shape, y_t.shape
    (torch.Size([2, 10, 16]), torch.Size([2, 16]))
    """

    config_class = DeltaNetConfig
    config: DeltaNetConfig
    qk_silu: ClassVar[bool] = False
    """Whether q and k pass through SiLU without the convolution, too."""

    def __init__(self, hidden_size: int, config: DeltaNetConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        c, n = self.config, self.config.factors
        self.num_v_heads = c.num_v_heads or c.num_heads  # each has a state
        self.key_size = head_size("expand_k", hidden_size, c.expand_k, c.num_heads)
        self.value_size = head_size(
            "expand_v",
            hidden_size,
            c.expand_v,
            self.num_v_heads,
            heads="num_v_heads" if c.num_v_heads else "num_heads",
        )
        keys, values = c.num_heads * self.key_size, self.num_v_heads * self.value_size
        self.sizes = [keys, n * keys, n * values]  # of q, k, v, factor by factor
        self.qkv_proj = nn.Linear(hidden_size, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes), c.conv_size, bias=False) if c.conv_size else None
        top = 2.0 if c.allow_neg_eigval else 1.0
        self.beta = BetaGate(hidden_size, n * self.num_v_heads, top, c.beta_stretch)
        self.norm: GatedRMSNorm | RMSNorm
        self.g_proj: nn.Linear | None = None
        if c.output_gate:
            self.norm = GatedRMSNorm(self.value_size, c.output_norm_eps, gate_first=False)
            self.g_proj = nn.Linear(hidden_size, values, bias=False)
            xavier_(self.g_proj.weight)
        else:
            self.norm = RMSNorm(self.value_size, c.output_norm_eps)
        self.o_proj = nn.Linear(values, hidden_size, bias=False)
        for part in (
            *torch.split(self.qkv_proj.weight, [keys] * (1 + n) + [values] * n),
            *torch.split(self.beta.proj.weight, self.num_v_heads),
            self.o_proj.weight,
        ):
            xavier_(part)

    def init_state(self, batch: int) -> DeltaNetState:
        S = self.zeros(batch, self.num_v_heads, self.key_size, self.value_size)
        conv = first_window(self.conv, S, sum(self.sizes))
        return DeltaNetState(S, conv)

    def beta_gates(self) -> dict[nn.Module, float]:
        return {self.beta: self.beta.top}

    def projections(self) -> DeltaProjections:
        """Return the weights that q, k, v, beta and the gate are computed with, as views.

        Writing into a view sets the weight. Normalisation, SiLU and sigmoids follow the projection.
        """
        n, heads = self.config.factors, self.num_v_heads
        q, k, v = self.qkv_proj.weight.split(self.sizes)
        keys = -1, self.key_size, self.hidden_size
        return DeltaProjections(
            q.view(keys),
            k.view(n, *keys),
            v.view(n, heads, self.value_size, -1),
            self.beta.proj.weight.view(n, heads, -1),
            None,
        )

    def op_inputs(
        self, x: Tensor, state: DeltaNetState | None = None, ops: TensorOps = TENSORS
    ) -> DeltaInputs:
        """Return what the layer feeds to `ops.delta_product` for x [B, T, hidden_size].

        Without a state, x starts a sequence.
        """
        state = self.first_state(x) if state is None else state
        c, n, window = self.config, self.config.factors, state.conv
        if self.conv:
            (q, k, v), window = ops.short_conv(
                ops.linear(x, self.qkv_proj),
                self.conv,
                window,
                sizes=self.sizes,
                head_sizes=[self.key_size, self.key_size, 0],
            )
        else:
            q, k, v = ops.split_linear(x, self.qkv_proj, self.sizes)
            q = ops.activate(q, silu=self.qk_silu, head_size=self.key_size)
            k = ops.activate(k, silu=self.qk_silu, head_size=self.key_size)
            v = ops.activate(v)
        shared = self.num_v_heads // c.num_heads
        return DeltaInputs(
            ops.split_heads(q, c.num_heads, shared),
            ops.split_heads(k, c.num_heads, shared, factors=n),
            ops.split_heads(v, self.num_v_heads, factors=n),
            ops.split_factors(ops.call(self.beta, x), n),
            self._gate(x, ops),
            window,
        )

    def _gate(self, x: Tensor, ops: TensorOps) -> Gate | None:
        """The gate [B, T, H] before the delta rule, for the layers that have one."""
        return None

    @recordable
    def mix(self, x: Tensor, state: DeltaNetState, ops: TensorOps) -> tuple[Tensor, DeltaNetState]:
        q, k, v, beta, gate, window = self.op_inputs(x, state, ops)
        o, S = ops.recurrence(q, k, v, beta, gate, state.S, factors=self.config.factors)
        out_gate = None if self.g_proj is None else ops.linear(x, self.g_proj)
        o = ops.merge_heads(ops.norm(o, self.norm, out_gate))
        return ops.linear(o, self.o_proj), DeltaNetState(S, window)

    def transitions(self, x: Tensor) -> HouseholderProduct:
        _, k, _, beta, gate, _ = self.op_inputs(x)
        n = self.config.factors
        return HouseholderProduct(
            decay=None if gate is None else gate.values(),
            k=k.unflatten(1, (-1, n)).transpose(2, 3),
            beta=beta.unflatten(1, (-1, n)).mT,
            bounds=self.config.bounds,
        )
