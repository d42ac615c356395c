"""Mamba of transformers (`MambaForCausalLM`)."""

from __future__ import annotations

from torch import Tensor

from statetrack.layers import MambaConfig
from statetrack.models.config import ModelConfig
from statetrack.models.convert.parts import backbone, conv
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
    # what the first released checkpoints say twice, or of other packages
    options.expect("rms_norm", True)
    options.ignore("d_inner", "d_model", "n_layer", "ssm_cfg", "fused_add_norm")
    options.ignore("pad_vocab_size_multiple")
    rank = options.get("time_step_rank", "auto")
    mixer = MambaConfig(
        d_state=options.size("state_size", 16),
        expand=options.size("expand", 2),
        conv_size=options.size("conv_kernel", 4),
        dt_rank=None if rank == "auto" else rank,
    )
    config = ModelConfig(
        vocab_size=options.size("vocab_size", 50280),
        hidden_size=options.size("hidden_size", 768),
        num_layers=options.size("num_hidden_layers", 32),
        mixer=mixer,
        norm_eps=options.get("layer_norm_epsilon", 1e-5),
        mlp="none",
        tie_embeddings=options.get("tie_word_embeddings", True),
    )
    return config, backbone(tensors, config, mamba_mixer)


def mamba_mixer(tensors: Tensors) -> dict[str, Tensor]:
    """The weights of `MambaMixer`."""
    return conv(tensors) | {name: tensors[name] for name in SAME}
