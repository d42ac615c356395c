"""Layers with the delta rule of flash-linear-attention and of transformers.

Each function renames the tensors of one layer. Its options are not in its tensors: those of our
layer must be set to match.
"""

from __future__ import annotations

import torch

from statetrack.models.convert.weights import State, Weights, depthwise, qkv, renamed

NAMES = {
    "beta.proj.weight": "b_proj.weight",
    "a_proj.weight": "a_proj.weight",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "g_proj.weight": "g_proj.weight",
    "norm.weight": "o_norm.weight",
    "o_proj.weight": "o_proj.weight",
}
"""Our names and those of flash-linear-attention; not every layer has every tensor."""


def delta_rule_mixer(state: State) -> Weights:
    """Rename fla's `DeltaNet`, `GatedDeltaNet`, `GatedDeltaProduct`; `OlmoHybridGatedDeltaNet`.

    OLMo-Hybrid has three convolutions in checkpoints and one in the module. fla's `use_gate` is our
    `output_gate`, and its Gated DeltaProduct without `use_forget_gate` is our DeltaProduct. Without
    a convolution our DeltaNet has no SiLU on q and k, as fla's with qk_activation = identity.
    """
    out = qkv(state)
    if "conv1d.weight" in state:
        out["conv.weight"] = depthwise(state["conv1d.weight"])
    return out | renamed(state, {o: theirs for o, theirs in NAMES.items() if theirs in state})


def qwen3_next_mixer(state: State, *, num_heads: int) -> Weights:
    """Rename `Qwen3NextGatedDeltaNet`, whose projections are ordered by key head.

    Args:
        state: the tensors of the layer.
        num_heads: `linear_num_key_heads`, which the shapes do not determine.
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
        "conv.weight": depthwise(state["conv1d.weight"]),
        "beta.proj.weight": b,
        "a_proj.weight": a,
        "A_log": A_log,
        "dt_bias": state["dt_bias"],
        "g_proj.weight": z,
        "norm.weight": norm,
        "o_proj.weight": state["out_proj.weight"],
    }


def qwen3_5_mixer(state: State) -> Weights:
    """Rename `Qwen3_5GatedDeltaNet`, whose projections are separate but for q, k and v."""
    names = {
        "qkv_proj.weight": "in_proj_qkv.weight",
        "beta.proj.weight": "in_proj_b.weight",
        "a_proj.weight": "in_proj_a.weight",
        "A_log": "A_log",
        "dt_bias": "dt_bias",
        "g_proj.weight": "in_proj_z.weight",
        "norm.weight": "norm.weight",
        "o_proj.weight": "out_proj.weight",
    }
    return renamed(state, names) | {"conv.weight": depthwise(state["conv1d.weight"])}
