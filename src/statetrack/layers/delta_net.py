"""DeltaNet: linear attention that corrects what it has stored, by the delta rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.config import at_least, option
from statetrack.layers.base import Mixer, MixerConfig, register
from statetrack.layers.common import (
    BetaGate,
    RMSNorm,
    ShortConv,
    head_size,
    l2_normalize,
    xavier_,
)
from statetrack.layers.transitions import HouseholderProduct
from statetrack.ops import delta_rule


@dataclass(frozen=True)
class DeltaNetConfig(MixerConfig):
    """Options of DeltaNet."""

    name: ClassVar[str] = "delta_net"
    label: ClassVar[str] = "DeltaNet"
    has_beta: ClassVar[bool] = True
    about: ClassVar[str] = "A(x) = I - beta k k^T, one generalised Householder matrix per head"

    num_heads: int = option(4, "heads, each with its own state")
    expand_k: float = option(1.0, "key size of all heads together / hidden size")
    expand_v: float = option(1.0, "value size of all heads together / hidden size")
    conv_size: int = option(4, "width of the causal convolution on q, k, v; 0 for none")
    head_norm_eps: float = option(1e-6, "epsilon of the norm on each head's output")
    beta_stretch: float = option(0.0, "d > 0 stretches beta past its ends by d and clips it")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_heads", self.num_heads, 1)
        at_least("expand_k", self.expand_k, 0)
        at_least("expand_v", self.expand_v, 0)
        at_least("conv_size", self.conv_size, 0)
        at_least("head_norm_eps", self.head_norm_eps, 0)
        at_least("beta_stretch", self.beta_stretch, 0)


class DeltaNetState(NamedTuple):
    """What DeltaNet remembers."""

    S: Tensor  # [B, H, K, V]
    conv: Tensor  # [B, conv_size - 1, 2 H K + H V]: the last inputs of the convolution


@register
class DeltaNet(Mixer):
    """S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,  o_t = norm(S_t^T q_t / sqrt(K)).

    q, k, v are projections of x, each with a short causal convolution and SiLU; q and k are then
    normalised to length 1. Without the convolution only v gets the SiLU. beta = sigmoid(w x), or
    2 sigmoid(w x) with `allow_neg_eigval`, which turns the eigenvalue along k from [0, 1] into
    [-1, 1]. Options: see DeltaNetConfig.
    """

    config_class = DeltaNetConfig
    config: DeltaNetConfig

    def __init__(self, hidden_size: int, config: DeltaNetConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        c = self.config
        self.key_size = head_size("expand_k", hidden_size, c.expand_k, c.num_heads)
        self.value_size = head_size("expand_v", hidden_size, c.expand_v, c.num_heads)
        self.sizes = [c.num_heads * s for s in (self.key_size, self.key_size, self.value_size)]
        self.qkv_proj = nn.Linear(hidden_size, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes), c.conv_size, bias=False) if c.conv_size else None
        top = 2.0 if c.allow_neg_eigval else 1.0
        self.beta = BetaGate(hidden_size, c.num_heads, top, c.beta_stretch)
        self.norm = RMSNorm(self.value_size, c.head_norm_eps)
        self.o_proj = nn.Linear(self.sizes[2], hidden_size, bias=False)
        for part in (
            *torch.split(self.qkv_proj.weight, self.sizes),
            self.beta.proj.weight,
            self.o_proj.weight,
        ):
            xavier_(part, gain=2**-2.5)

    def init_state(self, batch: int) -> DeltaNetState:
        S = torch.zeros(
            batch, self.config.num_heads, self.key_size, self.value_size, device=self.device
        )
        conv = self.conv.init_state(batch) if self.conv else S.new_zeros(batch, 0, sum(self.sizes))
        return DeltaNetState(S, conv)

    def _project(
        self, x: Tensor, window: Tensor, valid: Tensor | None, backend: str = "auto"
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k [B, T, H, K], v [B, T, H, V] and the convolution's next window."""
        qkv = self.qkv_proj(x)
        if self.conv:
            (q, k, v), window = self.conv(
                qkv,
                window,
                valid,
                sizes=self.sizes,
                head_sizes=[self.key_size, self.key_size, 0],
                backend=backend,
            )
            q, k, v = (part.unflatten(-1, (self.config.num_heads, -1)) for part in (q, k, v))
            return q, k, v, window
        q, k, v = (
            part.unflatten(-1, (self.config.num_heads, -1)) for part in qkv.split(self.sizes, -1)
        )
        return l2_normalize(q), l2_normalize(k), F.silu(v), window

    def mix(
        self, x: Tensor, state: DeltaNetState, valid: Tensor | None, backend: str = "auto"
    ) -> tuple[Tensor, DeltaNetState]:
        q, k, v, window = self._project(x, state.conv, valid, backend)
        beta = self.beta(x)
        if valid is not None:
            beta = beta.masked_fill(~valid[..., None], 0.0)
        o, S = delta_rule(
            q, k, v, beta, initial_state=state.S, output_final_state=True, backend=backend
        )
        assert S is not None
        return self.o_proj(self.norm(o, backend).flatten(-2)), DeltaNetState(S, window)

    def transitions(self, x: Tensor) -> HouseholderProduct:
        _, k, _, _ = self._project(x, self.init_state(x.shape[0]).conv, None)
        return HouseholderProduct(
            decay=None,
            k=k[..., None, :],
            beta=self.beta(x)[..., None],
            bounds=(-1.0 if self.config.allow_neg_eigval else 0.0, 1.0),
        )
