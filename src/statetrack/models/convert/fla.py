"""The model that flash-linear-attention builds around all its layers."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from statetrack.layers import MixerConfig
from statetrack.models.config import ModelConfig
from statetrack.models.convert.parts import ends, gated_mlp, prefixed
from statetrack.models.convert.source import Options, Tensors


def fla_model(
    options: Options,
    tensors: Tensors,
    mixer: MixerConfig,
    mixer_weights: Callable[[Tensors], dict[str, Tensor]],
    num_layers: int,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Pre-norm blocks with a SwiGLU, for a `...ForCausalLM`.

    `mixer_weights` renames the tensors of a layer; `num_layers` is what fla takes by default.
    """
    options.expect("hidden_act", "swish")
    options.expect("attn", None)
    options.expect("attnres_block_size", None)
    options.ignore("attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy")
    options.ignore("fuse_linear_cross_entropy", "use_l2warp")
    hidden_size = options.get("hidden_size", 2048)
    ratio = options.get("hidden_ratio", 4)
    size = options.get("intermediate_size", None)
    if size is None:
        size = 256 * math.ceil(int(hidden_size * (4 if ratio is None else ratio) * 2 / 3) / 256)
    tied = options.get("tie_word_embeddings", False)
    config = ModelConfig(
        vocab_size=options.get("vocab_size", 32000),
        hidden_size=hidden_size,
        num_layers=options.get("num_hidden_layers", num_layers),
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
        weights |= prefixed(f"{target}mixer.", mixer_weights(source.under("attn.")))
        weights |= prefixed(f"{target}mlp.", gated_mlp(source.under("mlp.")))
    return config, weights
