"""What several families have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.models.config import ModelConfig
from statetrack.models.convert.source import Tensors


def ends(tensors: Tensors, embedding: str, norm: str, tied: bool) -> dict[str, Tensor]:
    """Embedding, final norm and head; a tied head may be left out of a checkpoint."""
    weight = tensors[embedding]
    head = tensors["lm_head.weight"] if not tied or "lm_head.weight" in tensors else weight
    if tied and not torch.equal(head, weight):
        raise UserError(f"the checkpoint ties lm_head.weight and {embedding}, but they differ")
    return {"embedding.weight": weight, "norm.weight": tensors[norm], "head.weight": head}


def stacked(*parts: Tensor) -> Tensor:
    """Matrices on top of each other."""
    sizes = [list(part.shape) for part in parts]
    if any(size[1:] != sizes[0][1:] for size in sizes):
        raise UserError(f"the checkpoint has tensors that belong together of the sizes {sizes}")
    return torch.cat(parts)


def depthwise(weight: Tensor) -> Tensor:
    """A convolution's weight [D, W], which is [D, 1, W] there."""
    if weight.dim() != 3 or weight.shape[1] != 1:
        size = list(weight.shape)
        raise UserError(
            f"the checkpoint has a convolution of size {size}, not [channels, 1, width]"
        )
    return weight[:, 0]


def qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q, k and v, one matrix here, and so their convolutions, if there are any."""
    out = {"qkv_proj.weight": stacked(*(tensors[f"{part}_proj.weight"] for part in "qkv"))}
    if "q_conv1d.weight" in tensors:
        weight = stacked(*(tensors[f"{part}_conv1d.weight"] for part in "qkv"))
        out["conv.weight"] = depthwise(weight)
    return out


def gated_mlp(tensors: Tensors) -> dict[str, Tensor]:
    """down(silu(gate(x)) * up(x)), gate and up in one matrix here."""
    gate_up = stacked(tensors["gate_proj.weight"], tensors["up_proj.weight"])
    return {"gate_up.weight": gate_up, "down.weight": tensors["down_proj.weight"]}


def prefixed(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a part under their names in the whole."""
    return {prefix + name: weight for name, weight in weights.items()}


def backbone(
    tensors: Tensors, config: ModelConfig, mixer: Callable[[Tensors], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """transformers' Mamba and Mamba2: layers with a norm before and no MLPs, a final norm."""
    tied = config.tie_embeddings
    weights = ends(tensors, "backbone.embeddings.weight", "backbone.norm_f.weight", tied)
    for layer in range(config.num_layers):
        source, target = tensors.under(f"backbone.layers.{layer}."), f"blocks.{layer}."
        weights[f"{target}mixer_norm.weight"] = source["norm.weight"]
        weights |= prefixed(f"{target}mixer.", mixer(source.under("mixer.")))
    return weights


def conv(tensors: Tensors) -> dict[str, Tensor]:
    """A depthwise convolution and its bias."""
    return {"conv.weight": depthwise(tensors["conv1d.weight"]), "conv.bias": tensors["conv1d.bias"]}
