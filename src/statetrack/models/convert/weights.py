"""Renaming and joining tensors, as several families need it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.models.config import ModelConfig
from statetrack.models.convert.checkpoint import Tensors

State = Mapping[str, Tensor]
Weights = dict[str, Tensor]


def model_weights(
    tensors: Tensors,
    config: ModelConfig,
    embedding: str,
    norm: str,
    layers: str,
    block: Callable[[int, Tensors], Weights],
) -> Weights:
    """Rename the tensors of a whole model; `block(layer, tensors)` renames those of one block.

    A tied head may be missing from the checkpoint.
    """
    weight, tied = tensors[embedding], config.tie_embeddings
    head = tensors["lm_head.weight"] if not tied or "lm_head.weight" in tensors else weight
    if tied and not torch.equal(head, weight):
        raise UserError(f"the checkpoint ties lm_head.weight and {embedding}, but they differ")
    out = {"embedding.weight": weight, "norm.weight": tensors[norm], "head.weight": head}
    for layer in range(config.num_layers):
        weights = block(layer, tensors.under(f"{layers}.{layer}."))
        out |= prefixed(f"blocks.{layer}.", weights)
    return out


def wide_dtype(weights: State) -> torch.dtype:
    """Return the dtype that holds all weights, float32 at least."""
    return reduce(torch.promote_types, (t.dtype for t in weights.values()), torch.float32)


def prefixed(prefix: str, weights: Weights) -> Weights:
    """Put a prefix before every name."""
    return {prefix + name: weight for name, weight in weights.items()}


def renamed(state: State, names: Mapping[str, str] | Iterable[str]) -> Weights:
    """Select tensors by our names and theirs, or by names that are the same."""
    pairs = names.items() if isinstance(names, Mapping) else ((name, name) for name in names)
    return {ours: state[theirs] for ours, theirs in pairs}


def stacked(*parts: Tensor) -> Tensor:
    """Concatenate matrices along their rows."""
    sizes = [list(part.shape) for part in parts]
    if any(size[1:] != sizes[0][1:] for size in sizes):
        sizes = [size for n, size in enumerate(sizes) if size not in sizes[:n]]
        raise UserError(f"the checkpoint has tensors that belong together of the sizes {sizes}")
    return torch.cat(parts)


def depthwise(weight: Tensor) -> Tensor:
    """The weight of a convolution, [D, 1, W] there and [D, W] here."""
    if weight.dim() != 3 or weight.shape[1] != 1:
        size = list(weight.shape)
        raise UserError(
            f"the checkpoint has a convolution of size {size}, not [channels, 1, width]"
        )
    return weight[:, 0]


def convolution(state: State, name: str = "conv1d") -> Weights:
    """A depthwise convolution with a bias."""
    return {
        "conv.weight": depthwise(state[f"{name}.weight"]),
        "conv.bias": state[f"{name}.bias"],
    }


def qkv(state: State) -> Weights:
    """q, k and v as one matrix, and their convolutions as one, if there are any."""
    out = {"qkv_proj.weight": stacked(*(state[f"{part}_proj.weight"] for part in "qkv"))}
    if "q_conv1d.weight" in state:
        weight = stacked(*(state[f"{part}_conv1d.weight"] for part in "qkv"))
        out["conv.weight"] = depthwise(weight)
    return out


def gated_mlp(state: State) -> Weights:
    """down(silu(gate(x)) * up(x)), with gate and up as one matrix."""
    gate_up = stacked(state["gate_proj.weight"], state["up_proj.weight"])
    return {"gate_up.weight": gate_up, "down.weight": state["down_proj.weight"]}


def experts(state: Tensors, count: int) -> Weights:
    """The experts of transformers: stacked, as in its modules, or one by one, as in its files."""
    if "experts.gate_up_proj" in state:
        gate_up, down = state["experts.gate_up_proj"], state["experts.down_proj"]
    else:
        each = [gated_mlp(state.under(f"experts.{n}.")) for n in range(count)]
        gate_up = stacked(*(mlp["gate_up.weight"][None] for mlp in each))
        down = stacked(*(mlp["down.weight"][None] for mlp in each))
    shared = gated_mlp(state.under("shared_expert."))
    return {
        "router.weight": state["gate.weight"],
        "gate_up": gate_up,
        "down": down,
        "shared_gate_up.weight": shared["gate_up.weight"],
        "shared_down.weight": shared["down.weight"],
        "shared_gate.weight": state["shared_expert_gate.weight"],
    }
