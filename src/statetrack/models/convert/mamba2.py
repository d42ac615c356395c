"""Mamba2ForCausalLM of Hugging Face transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from statetrack.errors import UserError
from statetrack.layers import Mamba2Config
from statetrack.models.config import ModelConfig

_AROUND = {
    "backbone.embeddings.weight": "embedding.weight",
    "backbone.norm_f.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}
_FIXED = {"use_bias": False, "use_conv_bias": True, "hidden_act": "silu"}


def mamba2_config(hf_config: Mapping[str, Any]) -> ModelConfig:
    """The model that a Mamba2Config, as a dictionary or its config.json, describes."""
    for key, value in _FIXED.items():
        if hf_config[key] != value:
            raise UserError(f"Mamba2 has {key} = {value} only; got {hf_config[key]!r}")
    channels = hf_config["num_heads"] * hf_config["head_dim"]
    if channels != hf_config["expand"] * hf_config["hidden_size"]:
        raise UserError(
            "num_heads * head_dim must be expand * hidden_size; got "
            f"{hf_config['num_heads']} * {hf_config['head_dim']} and "
            f"{hf_config['expand']} * {hf_config['hidden_size']}"
        )
    low, high = hf_config["time_step_limit"]
    if not isinstance(high, float | int) or math.isinf(high):  # config.json has an object for inf
        high = None
    mixer = Mamba2Config(
        d_state=hf_config["state_size"],
        expand=hf_config["expand"],
        head_dim=hf_config["head_dim"],
        n_groups=hf_config["n_groups"],
        conv_size=hf_config["conv_kernel"],
        dt_min=hf_config["time_step_min"],
        dt_max=hf_config["time_step_max"],
        dt_limit_min=low,
        dt_limit_max=high,
        output_norm_eps=hf_config["layer_norm_epsilon"],
    )
    return ModelConfig(
        vocab_size=hf_config["vocab_size"],
        hidden_size=hf_config["hidden_size"],
        num_layers=hf_config["num_hidden_layers"],
        mixer=mixer,
        norm_eps=hf_config["layer_norm_epsilon"],
        mlp="none",
        tie_embeddings=hf_config["tie_word_embeddings"],
        initializer_range=hf_config["initializer_range"],
    )


def mamba2(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a Mamba2ForCausalLM under our names."""
    weights = {_name(name): tensor for name, tensor in state.items()}
    for name, tensor in weights.items():
        if name.endswith(".conv.weight"):
            weights[name] = tensor.squeeze(1)  # [D, 1, W] -> [D, W]
    weights.setdefault("head.weight", weights["embedding.weight"])  # a file has tied ones once
    return weights


def _name(name: str) -> str:
    if name in _AROUND:
        return _AROUND[name]
    backbone, _, rest = name.partition(".layers.")
    layer, _, part = rest.partition(".")
    if backbone != "backbone" or not layer.isdigit():
        raise UserError(f"a Mamba2ForCausalLM has no {name!r}")
    part = "mixer_norm.weight" if part == "norm.weight" else part.replace("conv1d.", "conv.")
    return f"blocks.{layer}.{part}"
