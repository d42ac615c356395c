"""The layers on the delta rule of flash-linear-attention and of transformers.

Each function takes the tensors of one layer by their names there and gives them the names of our
layer, whose options must say the same: the options of a checkpoint are not in its tensors. Every
tensor is read once; where there is none, the layer has no such part.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from statetrack.models.convert.parts import depthwise, qkv

State = Mapping[str, Tensor]

RENAMED = {
    "beta.proj.weight": "b_proj.weight",
    "a_proj.weight": "a_proj.weight",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "g_proj.weight": "g_proj.weight",
    "norm.weight": "o_norm.weight",
    "o_proj.weight": "o_proj.weight",
}
"""Our names and those of flash-linear-attention; not every layer has every part."""


def delta_rule_mixer(state: State) -> dict[str, Tensor]:
    """fla's `DeltaNet`, `GatedDeltaNet` and `GatedDeltaProduct`, and `OlmoHybridGatedDeltaNet`.

    The convolutions of OLMo-Hybrid are three in checkpoints and one in the module. fla's `use_gate`
    is our `output_gate`, and its Gated DeltaProduct without `use_forget_gate` our DeltaProduct.
    Without a convolution our DeltaNet has no SiLU on q and k: qk_activation = identity there.
    """
    out = qkv(state)
    if "conv1d.weight" in state:
        out["conv.weight"] = depthwise(state["conv1d.weight"])
    return out | {ours: state[theirs] for ours, theirs in RENAMED.items() if theirs in state}


def qwen3_next_mixer(state: State, *, num_heads: int) -> dict[str, Tensor]:
    """`Qwen3NextGatedDeltaNet`, whose projections go head by head of the keys.

    Args:
        state: the tensors of the layer.
        num_heads: `linear_num_key_heads`, which the tensors' shapes do not tell.
    """
    A_log, norm = state["A_log"], state["norm.weight"]
    shared = len(A_log) // num_heads  # value heads for each key head
    qkvz = state["in_proj_qkvz.weight"].unflatten(0, (num_heads, -1))
    values = shared * len(norm)
    keys = qkvz.shape[1] // 2 - values
    q, k, v, z = (part.flatten(0, 1) for part in qkvz.split([keys, keys, values, values], 1))
    b_a = state["in_proj_ba.weight"].unflatten(0, (num_heads, -1))
    b, a = (part.flatten(0, 1) for part in b_a.split(shared, 1))
    return {
        "qkv_proj.weight": torch.cat([q, k, v]),
        "conv.weight": state["conv1d.weight"][:, 0],
        "beta.proj.weight": b,
        "a_proj.weight": a,
        "A_log": A_log,
        "dt_bias": state["dt_bias"],
        "g_proj.weight": z,
        "norm.weight": norm,
        "o_proj.weight": state["out_proj.weight"],
    }
