"""Mamba2 of transformers (`Mamba2ForCausalLM`)."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from statetrack.errors import UserError
from statetrack.layers import Mamba2Config
from statetrack.models.config import ModelConfig
from statetrack.models.convert.parts import backbone, conv
from statetrack.models.convert.source import Options, Tensors

SAME = ("A_log", "D", "dt_bias", "in_proj.weight", "norm.weight", "out_proj.weight")


def mamba2(options: Options, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model around the layers has a final norm and no MLPs."""
    options.expect("hidden_act", "silu", "swish")
    options.expect("use_bias", False)
    options.expect("use_conv_bias", True)
    options.ignore("chunk_size", "residual_in_fp32", "rescale_prenorm_residual")
    options.ignore("time_step_rank", "time_step_min", "time_step_max", "time_step_floor")
    hidden_size, expand = options.size("hidden_size", 4096), options.size("expand", 2)
    heads, head_dim = options.size("num_heads", 128), options.size("head_dim", 64)
    if heads * head_dim != expand * hidden_size:
        raise UserError(
            f"num_heads * head_dim must be expand * hidden_size; got {heads} * {head_dim} and "
            f"{expand} * {hidden_size}"
        )
    low, high = _limits(options.get("time_step_limit", (0.0, math.inf)))
    eps = options.get("layer_norm_epsilon", 1e-5)
    mixer = Mamba2Config(
        d_state=options.size("state_size", 128),
        expand=expand,
        head_dim=head_dim,
        n_groups=options.size("n_groups", 8),
        conv_size=options.size("conv_kernel", 4),
        dt_limit_min=low,
        dt_limit_max=high,
        output_norm_eps=eps,
    )
    config = ModelConfig(
        vocab_size=options.size("vocab_size", 32768),
        hidden_size=hidden_size,
        num_layers=options.size("num_hidden_layers", 64),
        mixer=mixer,
        norm_eps=eps,
        mlp="none",
        tie_embeddings=options.get("tie_word_embeddings", False),
    )
    return config, backbone(tensors, config, mamba2_mixer)


def _limits(value: Any) -> tuple[float, float | None]:
    """Least and greatest step size, None for infinity, which JSON has no number for."""
    match value:
        case [float() | int() as low, float() | int() as high]:
            return low, None if high == math.inf else high
        case [float() | int() as low, None | "Infinity" | {"__float__": "Infinity"}]:
            return low, None
    raise UserError(f"the checkpoint's time_step_limit must be two numbers; got {value!r}")


def mamba2_mixer(tensors: Tensors) -> dict[str, Tensor]:
    """The weights of `Mamba2Mixer`."""
    return conv(tensors) | {name: tensors[name] for name in SAME}
