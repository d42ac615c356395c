"""DeltaNet, Gated DeltaNet, Gated DeltaProduct and GLA of flash-linear-attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from statetrack.layers import (
    DeltaNetConfig,
    DeltaProductConfig,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
    MixerConfig,
)
from statetrack.models.config import ModelConfig
from statetrack.models.convert.gated_delta_net import delta_rule_mixer
from statetrack.models.convert.parts import ends, gated_mlp, prefixed, qkv
from statetrack.models.convert.source import Options, Tensors


def delta_net(options: Options, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """`DeltaNetForCausalLM`; our q and k have a SiLU with a convolution, and none without."""
    conv = options.get("use_short_conv", True)
    options.expect("qk_activation", "silu" if conv else "identity", default="silu")
    options.expect("qk_norm", "l2")
    options.expect("use_beta", True)
    options.ignore("use_output_norm")  # fla normalises in any case
    mixer = DeltaNetConfig(
        expand_k=options.size("expand_k", 1.0),
        expand_v=options.size("expand_v", 1.0),
        output_gate=options.get("use_gate", False),
        **_common(options, num_heads=16),
    )
    return _model(options, tensors, mixer, num_layers=24)


def gated_delta_net(options: Options, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """`GatedDeltaNetForCausalLM`."""
    options.expect("output_gate_activation", "swish", "silu")
    mixer = GatedDeltaNetConfig(
        num_v_heads=options.size("num_v_heads", None),
        output_gate=options.get("use_gate", True),
        **_common(options, num_heads=6),
        **_sizes(options),
    )
    return _model(options, tensors, mixer, num_layers=21)


def gated_delta_product(
    options: Options, tensors: Tensors
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """`GatedDeltaProductForCausalLM`; without `use_forget_gate` it is our DeltaProduct."""
    gated = options.get("use_forget_gate", False)
    mixer = (GatedDeltaProductConfig if gated else DeltaProductConfig)(
        num_householder=options.size("num_householder", 1),
        output_gate=options.get("use_output_gate", True),
        **_common(options, num_heads=6),
        **_sizes(options),
    )
    return _model(options, tensors, mixer, num_layers=21)


def gla(options: Options, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """`GLAForCausalLM`."""
    options.expect("num_kv_heads", None, options.get("num_heads", 4))
    options.expect("feature_map", None)
    options.expect("clamp_min", None)
    options.expect("use_output_gate", True)
    options.expect("elementwise_affine", True)
    options.ignore("use_gk", "use_gv")  # nothing reads them there
    mixer = GLAConfig(
        expand_k=options.size("expand_k", 0.5),
        expand_v=options.size("expand_v", 1.0),
        gate_low_rank_dim=16,
        gate_logit_normalizer=16.0,
        **_common(options, num_heads=4, use_short_conv=False),
    )
    return _model(options, tensors, mixer, num_layers=24, layer_weights=gla_mixer)


def gla_mixer(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of `GatedLinearAttention`, whose norm has another name with `fuse_norm`."""
    norm = "g_norm" if "g_norm.weight" in state else "g_norm_swish_gate"
    renamed = {
        **{f"decay_proj.{part}": f"gk_proj.{part}" for part in ("0.weight", "1.weight", "1.bias")},
        "gate_proj.weight": "g_proj.weight",
        "norm.weight": f"{norm}.weight",
        "o_proj.weight": "o_proj.weight",
    }
    return qkv(state) | {ours: state[theirs] for ours, theirs in renamed.items()}


def _common(options: Options, num_heads: int, use_short_conv: bool = True) -> dict[str, Any]:
    """What all these layers have; `num_heads`, `use_short_conv` are what fla takes by default."""
    conv = options.size("conv_size", None) or 4
    return {
        "allow_neg_eigval": options.get("allow_neg_eigval", False),
        "num_heads": options.size("num_heads", num_heads),
        "conv_size": conv if options.get("use_short_conv", use_short_conv) else 0,
        "output_norm_eps": options.get("norm_eps", 1e-6),
    }


def _sizes(options: Options) -> dict[str, Any]:
    """The sizes of heads, of which ours are shares of the hidden size."""
    hidden_size, head_dim = options.size("hidden_size", 2048), options.size("head_dim", 256)
    heads = options.size("num_heads", 6)
    value_heads = options.size("num_v_heads", None) or heads
    values = value_heads * int(head_dim * options.size("expand_v", 2.0))
    return {"expand_k": heads * head_dim / hidden_size, "expand_v": values / hidden_size}


def _model(
    options: Options,
    tensors: Tensors,
    mixer: MixerConfig,
    num_layers: int,
    layer_weights: Callable[[Tensors], dict[str, Tensor]] = delta_rule_mixer,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """What fla builds around a layer: pre-norm blocks with a SwiGLU.

    `num_layers` is what fla takes by default; `layer_weights` gives a layer's tensors our names.
    """
    options.expect("hidden_act", "swish")
    options.expect("attn", None)
    options.expect("attnres_block_size", None)
    options.ignore("attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy")
    options.ignore("fuse_linear_cross_entropy", "use_l2warp")
    hidden_size = options.size("hidden_size", 2048)
    ratio = options.size("hidden_ratio", None)
    size = options.size("intermediate_size", None)
    if size is None:
        size = 256 * math.ceil(int(hidden_size * (4 if ratio is None else ratio) * 2 / 3) / 256)
    tied = options.get("tie_word_embeddings", False)
    config = ModelConfig(
        vocab_size=options.size("vocab_size", 32000),
        hidden_size=hidden_size,
        num_layers=options.size("num_hidden_layers", num_layers),
        mixer=mixer,
        norm_eps=options.get("norm_eps", 1e-6),
        mlp_size=size,
        tie_embeddings=tied,
    )
    weights = ends(tensors, "model.embeddings.weight", "model.norm.weight", tied)
    for layer in range(config.num_layers):
        source, target = tensors.under(f"model.layers.{layer}."), f"blocks.{layer}."
        weights[f"{target}mixer_norm.weight"] = source["attn_norm.weight"]
        weights[f"{target}mlp_norm.weight"] = source["mlp_norm.weight"]
        weights |= prefixed(f"{target}mixer.", layer_weights(source.under("attn.")))
        weights |= prefixed(f"{target}mlp.", gated_mlp(source.under("mlp.")))
    return config, weights
