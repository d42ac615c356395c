"""Mamba and Mamba2 of transformers (`MambaForCausalLM`, `Mamba2ForCausalLM`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from statetrack.errors import UserError
from statetrack.layers import Mamba2Config, MambaConfig, MixerConfig
from statetrack.models.config import ModelConfig
from statetrack.models.convert import weights
from statetrack.models.convert.checkpoint import Options, Tensors
from statetrack.models.convert.weights import State, Weights

MAMBA = (
    "A_log", "D", "in_proj.weight", "x_proj.weight", "dt_proj.weight", "dt_proj.bias",
    "out_proj.weight",
)  # fmt: skip
MAMBA2 = ("A_log", "D", "dt_bias", "in_proj.weight", "norm.weight", "out_proj.weight")


def mamba(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert a `MambaForCausalLM`."""
    options.ignore("use_mambapy", "use_associative_scan", "intermediate_size", "time_step_scale")
    options.ignore("time_step_init_scheme")
    # options of the first released checkpoints that repeat others or belong to other packages
    options.ignore("d_inner", "d_model", "n_layer", "ssm_cfg", "fused_add_norm")
    options.ignore("pad_vocab_size_multiple")
    rank = options.get("time_step_rank", "auto")
    mixer = MambaConfig(
        d_state=options.size("state_size", 16),
        expand=options.size("expand", 2),
        conv_size=options.size("conv_kernel", 4),
        dt_rank=None if rank == "auto" else rank,
    )
    sizes = {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32}
    return _model(options, tensors, mixer, sizes, tied=True, rename=mamba_mixer)


def mamba2(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert a `Mamba2ForCausalLM`."""
    options.ignore("chunk_size", "time_step_rank")
    hidden_size, expand = options.size("hidden_size", 4096), options.size("expand", 2)
    heads, head_dim = options.size("num_heads", 128), options.size("head_dim", 64)
    if heads * head_dim != expand * hidden_size:
        raise UserError(
            f"num_heads * head_dim must be expand * hidden_size; got {heads} * {head_dim} and "
            f"{expand} * {hidden_size}"
        )
    low, high = step_limits(options.get("time_step_limit", (0.0, math.inf)))
    mixer = Mamba2Config(
        d_state=options.size("state_size", 128),
        expand=expand,
        head_dim=head_dim,
        n_groups=options.size("n_groups", 8),
        conv_size=options.size("conv_kernel", 4),
        dt_limit_min=low,
        dt_limit_max=high,
        output_norm_eps=options.get("layer_norm_epsilon", 1e-5),
        norm_by_group=True,  # transformers before 5.23 normalised all groups together
    )
    sizes = {"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64}
    return _model(options, tensors, mixer, sizes, tied=False, rename=mamba2_mixer)


def _model(
    options: Options,
    tensors: Tensors,
    mixer: MixerConfig,
    sizes: dict[str, int],
    tied: bool,
    rename: Callable[[State], Weights],
) -> tuple[ModelConfig, Weights]:
    """Convert what is around the mixers: norms, but no MLPs. `sizes` and `tied` are defaults."""
    options.expect("hidden_act", "silu", "swish")
    options.expect("use_bias", False)
    options.expect("use_conv_bias", True)
    options.expect("rms_norm", True)
    options.ignore("residual_in_fp32", "rescale_prenorm_residual")
    options.ignore("time_step_min", "time_step_max", "time_step_floor")
    vocab_size, hidden_size, num_layers = (options.size(*size) for size in sizes.items())
    config = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        mixer=mixer,
        norm_eps=options.get("layer_norm_epsilon", 1e-5),
        mlp="none",
        tie_embeddings=options.get("tie_word_embeddings", tied),
    )

    def block(_: int, source: Tensors) -> Weights:
        norm = {"mixer_norm.weight": source["norm.weight"]}
        return norm | weights.prefixed("mixer.", rename(source.under("mixer.")))

    names = "backbone.embeddings.weight", "backbone.norm_f.weight", "backbone.layers"
    return config, weights.model_weights(tensors, config, *names, block)


def step_limits(value: Any) -> tuple[float, float | None]:
    """The smallest and largest step size, None for infinity, which JSON has no number for."""
    match value:
        case [float() | int() as low, float() | int() as high]:
            return low, None if high == math.inf else high
        case [float() | int() as low, None | "Infinity" | {"__float__": "Infinity"}]:
            return low, None
    raise UserError(f"the checkpoint's time_step_limit must be two numbers; got {value!r}")


def mamba_mixer(state: State) -> Weights:
    """Rename the weights of a `MambaMixer`."""
    return weights.convolution(state) | weights.renamed(state, MAMBA)


def mamba2_mixer(state: State) -> Weights:
    """Rename the weights of a `Mamba2Mixer`."""
    return weights.convolution(state) | weights.renamed(state, MAMBA2)
