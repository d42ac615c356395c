"""DeltaNet, Gated DeltaNet, Gated DeltaProduct and GLA of flash-linear-attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from statetrack.layers import (
    DeltaNetConfig,
    DeltaProductConfig,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
    MixerConfig,
)
from statetrack.models.config import ModelConfig
from statetrack.models.convert import weights
from statetrack.models.convert.checkpoint import Options, Tensors
from statetrack.models.convert.gated_delta_net import delta_rule_mixer
from statetrack.models.convert.weights import State, Weights


def delta_net(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert a `DeltaNetForCausalLM`; our q and k have a SiLU only with a convolution."""
    conv = options.get("use_short_conv", True)
    options.expect("qk_activation", "silu" if conv else "identity", default="silu")
    options.expect("qk_norm", "l2")
    options.expect("use_beta", True)
    options.ignore("use_output_norm")  # fla ignores it and always normalises
    mixer = DeltaNetConfig(
        expand_k=options.size("expand_k", 1.0),
        expand_v=options.size("expand_v", 1.0),
        output_gate=options.get("use_gate", False),
        **_common(options, num_heads=16),
    )
    return _model(options, tensors, mixer, num_layers=24)


def gated_delta_net(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert a `GatedDeltaNetForCausalLM`."""
    options.expect("output_gate_activation", "swish", "silu")
    mixer = GatedDeltaNetConfig(
        num_v_heads=options.size("num_v_heads", None),
        output_gate=options.get("use_gate", True),
        **_common(options, num_heads=6),
        **_sizes(options),
    )
    return _model(options, tensors, mixer, num_layers=21)


def gated_delta_product(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert a `GatedDeltaProductForCausalLM`, our DeltaProduct without `use_forget_gate`."""
    gated = options.get("use_forget_gate", False)
    mixer = (GatedDeltaProductConfig if gated else DeltaProductConfig)(
        num_householder=options.size("num_householder", 1),
        output_gate=options.get("use_output_gate", True),
        **_common(options, num_heads=6),
        **_sizes(options),
    )
    return _model(options, tensors, mixer, num_layers=21)


def gla(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert a `GLAForCausalLM`."""
    options.expect("num_kv_heads", None, options.get("num_heads", 4))
    options.expect("feature_map", None)
    options.expect("clamp_min", None)
    options.expect("use_output_gate", True)
    options.expect("elementwise_affine", True)
    options.expect("allow_neg_eigval", False)  # fla's GLA has [0,1] only
    options.ignore("use_gk", "use_gv")  # fla does not read them
    mixer = GLAConfig(
        expand_k=options.size("expand_k", 0.5),
        expand_v=options.size("expand_v", 1.0),
        gate_low_rank_dim=16,
        gate_logit_normalizer=16.0,
        **_common(options, num_heads=4, use_short_conv=False),
    )
    return _model(options, tensors, mixer, num_layers=24, rename=gla_mixer)


def gla_mixer(state: State) -> Weights:
    """Rename the weights of a `GatedLinearAttention`; `fuse_norm` changes the name of its norm."""
    norm = "g_norm" if "g_norm.weight" in state else "g_norm_swish_gate"
    names = {
        **{f"decay_proj.{part}": f"gk_proj.{part}" for part in ("0.weight", "1.weight", "1.bias")},
        "gate_proj.weight": "g_proj.weight",
        "norm.weight": f"{norm}.weight",
        "o_proj.weight": "o_proj.weight",
    }
    return weights.qkv(state) | weights.renamed(state, names)


def _common(options: Options, num_heads: int, use_short_conv: bool = True) -> dict[str, Any]:
    """Read the options that all layers have; `num_heads`, `use_short_conv` are fla's defaults."""
    conv = options.size("conv_size", None) or 4
    return {
        "allow_neg_eigval": options.get("allow_neg_eigval", False),
        "num_heads": options.size("num_heads", num_heads),
        "conv_size": conv if options.get("use_short_conv", use_short_conv) else 0,
        "output_norm_eps": options.get("norm_eps", 1e-6),
    }


def _sizes(options: Options) -> dict[str, Any]:
    """Read the sizes of heads, which our layers have relative to the hidden size."""
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
    rename: Callable[[State], Weights] = delta_rule_mixer,
) -> tuple[ModelConfig, Weights]:
    """Convert what is around the mixers: pre-norm blocks with a SwiGLU.

    `num_layers` is fla's default; `rename` renames the tensors of a mixer.
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
    config = ModelConfig(
        vocab_size=options.size("vocab_size", 32000),
        hidden_size=hidden_size,
        num_layers=options.size("num_hidden_layers", num_layers),
        mixer=mixer,
        norm_eps=options.get("norm_eps", 1e-6),
        mlp_size=size,
        tie_embeddings=options.get("tie_word_embeddings", False),
    )

    def block(_: int, source: Tensors) -> Weights:
        return {
            "mixer_norm.weight": source["attn_norm.weight"],
            "mlp_norm.weight": source["mlp_norm.weight"],
            **weights.prefixed("mixer.", rename(source.under("attn."))),
            **weights.prefixed("mlp.", weights.gated_mlp(source.under("mlp."))),
        }

    names = "model.embeddings.weight", "model.norm.weight", "model.layers"
    return config, weights.model_weights(tensors, config, *names, block)
