"""Layers of flash-linear-attention behind the interface that `statetrack.testing` checks."""

from __future__ import annotations

from typing import Any

import torch
from fla.layers import DeltaNet, GatedDeltaNet, GatedDeltaProduct, GatedLinearAttention
from fla.models.utils import Cache
from torch import Tensor

from statetrack.testing.case import map_state
from tests.peers.common import NO_TRANSITIONS, QUICK, Conformance, Peer

WIDTH = 12

# of these, what the stand-ins for Triton's kernels do would decide
KERNELS = {
    "finite_differences", "float32", "bfloat16", "float16", "autocast", "vmap",
    "per_sample_gradients", "forward_mode", "double_backward", "meta", "determinism",
    "dispatch_modes", "threads",
}  # fmt: skip
CHECKS = [name for name in QUICK if name not in KERNELS]


class FlashLinearAttention(Peer):
    """A layer with the state that its package's cache holds."""

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        past = [] if state is None else [map_state(torch.clone, state)]  # written in place
        y, _, cache = self.layer(
            x,
            attention_mask=mask,
            past_key_values=Cache.from_legacy_cache(past),
            use_cache=True,
            cu_seqlens=cu_seqlens,
        )
        return y, {name: part for name, part in cache[0].items() if part is not None}


def expected(layer: Any, **options: Any) -> Conformance:
    def factory() -> FlashLinearAttention:
        made = layer(hidden_size=WIDTH, num_heads=2, layer_idx=0, **options)
        return FlashLinearAttention(made.eval(), WIDTH)

    return Conformance(
        "flash-linear-attention", layer.__name__, factory, NO_TRANSITIONS, findings={}
    )


FUSED_HOOKS = (
    "In a pass without a cache, forward hooks of `q_conv1d`, `k_conv1d` and `v_conv1d` are not "
    "called: their weights are read directly."
)

PEERS = {
    "delta_net": expected(DeltaNet, allow_neg_eigval=True),
    "gated_delta_net": expected(GatedDeltaNet, num_v_heads=4, head_dim=6, expand_v=1),
    "gated_delta_product": expected(GatedDeltaProduct, head_dim=6, expand_v=1),
    "gla": expected(GatedLinearAttention, gate_low_rank_dim=4, use_short_conv=True),
}
