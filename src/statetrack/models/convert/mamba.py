"""Mamba of transformers (`MambaForCausalLM`)."""

from __future__ import annotations

from torch import Tensor

from statetrack.layers import MambaConfig
from statetrack.models.config import ModelConfig
from statetrack.models.convert.parts import ends, prefixed
from statetrack.models.convert.source import Options, Tensors

SAME = (
    "A_log", "D", "in_proj.weight", "x_proj.weight", "dt_proj.weight", "dt_proj.bias",
    "out_proj.weight",
)  # fmt: skip


def mamba(options: Options, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model around the layers has a final norm and no MLPs."""
    options.expect("hidden_act", "silu", "swish")
    options.expect("use_bias", False)
    options.expect("use_conv_bias", True)
    options.ignore("use_mambapy", "use_associative_scan", "residual_in_fp32", "intermediate_size")
    options.ignore("time_step_scale", "time_step_min", "time_step_max", "time_step_floor")
    options.ignore("time_step_init_scheme", "rescale_prenorm_residual")
    rank = options.get("time_step_rank", "auto")
    mixer = MambaConfig(
        d_state=options.get("state_size", 16),
        expand=options.get("expand", 2),
        conv_size=options.get("conv_kernel", 4),
        dt_rank=None if rank == "auto" else rank,
    )
    tied = options.get("tie_word_embeddings", True)
    config = ModelConfig(
        vocab_size=options.get("vocab_size", 50280),
        hidden_size=options.get("hidden_size", 768),
        num_layers=options.get("num_hidden_layers", 32),
        mixer=mixer,
        norm_eps=options.get("layer_norm_epsilon", 1e-5),
        mlp="none",
        tie_embeddings=tied,
    )
    weights = ends(tensors, "backbone.embeddings.weight", "backbone.norm_f.weight", tied)
    for layer in range(config.num_layers):
        source, target = tensors.under(f"backbone.layers.{layer}."), f"blocks.{layer}."
        weights[f"{target}mixer_norm.weight"] = source["norm.weight"]
        weights |= prefixed(f"{target}mixer.", mamba_mixer(source.under("mixer.")))
    return config, weights


def mamba_mixer(tensors: Tensors) -> dict[str, Tensor]:
    """The weights of `MambaMixer`."""
    conv = {
        "conv.weight": tensors["conv1d.weight"][:, 0],  # [D, 1, W]
        "conv.bias": tensors["conv1d.bias"],
    }
    return conv | {name: tensors[name] for name in SAME}
