"""DeltaNet of flash-linear-attention (`DeltaNetForCausalLM`)."""

from __future__ import annotations

import torch
from torch import Tensor

from statetrack.layers import DeltaNetConfig
from statetrack.models.config import ModelConfig
from statetrack.models.convert.fla import fla_model
from statetrack.models.convert.source import Options, Tensors


def delta_net(options: Options, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """With a convolution q and k have a SiLU here, without one they have not."""
    conv, width = options.get("use_short_conv", True), options.get("conv_size", 4)
    options.expect("qk_activation", "silu" if conv else "identity", default="silu")
    options.expect("qk_norm", "l2")
    options.expect("use_beta", True)
    options.expect("use_gate", False)
    options.ignore("use_output_norm")  # fla reads it and normalises always
    mixer = DeltaNetConfig(
        allow_neg_eigval=options.get("allow_neg_eigval", False),
        num_heads=options.get("num_heads", 16),
        expand_k=options.get("expand_k", 1.0),
        expand_v=options.get("expand_v", 1.0),
        conv_size=width if conv else 0,
        head_norm_eps=options.get("norm_eps", 1e-6),
    )
    return fla_model(options, tensors, mixer, delta_net_mixer, num_layers=24)


def delta_net_mixer(tensors: Tensors) -> dict[str, Tensor]:
    """The weights of fla's layer `DeltaNet`: q, k and v are one matrix here."""
    weights = {
        "qkv_proj.weight": torch.cat([tensors[f"{x}_proj.weight"] for x in "qkv"]),
        "beta.proj.weight": tensors["b_proj.weight"],
        "norm.weight": tensors["o_norm.weight"],
        "o_proj.weight": tensors["o_proj.weight"],
    }
    if "q_conv1d.weight" in tensors:  # [D, 1, W]
        weights["conv.weight"] = torch.cat([tensors[f"{x}_conv1d.weight"] for x in "qkv"])[:, 0]
    return weights
