"""Checkpoints of Hugging Face transformers and flash-linear-attention as models of this package.

    model = load_pretrained("folder")                         # in the range of the checkpoint
    model = load_pretrained("folder", allow_neg_eigval=True)  # the same weights in [-1, 1]

Neither package is needed. Each file here is a family of models: it reads their options and renames
their tensors. An unknown option or tensor is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from statetrack.config import unknown
from statetrack.errors import UserError
from statetrack.files import read_json, regular, unreadable
from statetrack.models.config import ModelConfig
from statetrack.models.convert import fla
from statetrack.models.convert.checkpoint import Options, Tensors
from statetrack.models.convert.mamba import mamba, mamba2
from statetrack.models.convert.olmo_hybrid import olmo_hybrid
from statetrack.models.convert.qwen3_next import (
    qwen3_5,
    qwen3_5_moe,
    qwen3_5_moe_text,
    qwen3_5_text,
    qwen3_next,
)
from statetrack.models.convert.weights import Weights, wide_dtype
from statetrack.models.sequence_model import SequenceModel

__all__ = ["CONVERTERS", "convert", "load_pretrained", "read_checkpoint", "translate"]

Family = Callable[[Options, Tensors], tuple[ModelConfig, Weights]]

CONVERTERS: dict[str, Family] = {
    "delta_net": fla.delta_net,
    "gated_deltanet": fla.gated_delta_net,
    "gated_deltaproduct": fla.gated_delta_product,
    "gla": fla.gla,
    "mamba": mamba,
    "mamba2": mamba2,
    "olmo_hybrid": olmo_hybrid,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5_moe,
    "qwen3_5_moe_text": qwen3_5_moe_text,
    "qwen3_5_text": qwen3_5_text,
    "qwen3_next": qwen3_next,
}
"""By the `model_type` of their config.json."""

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def convert(
    config: Mapping[str, Any],
    state: Mapping[str, Tensor],
    *,
    allow_neg_eigval: bool | None = None,
    share: bool = False,
) -> SequenceModel:
    """Build a model with the weights of another package's, in float32 or wider.

    Args:
        config: the checkpoint's config.json, or `model.config.to_dict()`.
        state: its tensors by name, or `model.state_dict()`.
        allow_neg_eigval: the range of the eigenvalues; None keeps that of the checkpoint.
        share: take the tensors themselves, not copies, where neither dtype nor layout differ: what
            changes them later changes this model too.

    Returns:
        The model. Every tensor of the checkpoint is used exactly once.

    Raises:
        UserError: an option or a tensor is unknown, missing or of the wrong size.
    """
    model_config, weights = translate(config, state, allow_neg_eigval=allow_neg_eigval)
    try:
        with torch.device("meta"):  # sizes in config.json may be wrong and huge
            empty = SequenceModel(model_config)
    except RuntimeError as error:
        raise UserError(
            f"no model has the sizes in the checkpoint's config.json: {error}"
        ) from None
    wanted = {name: list(t.shape) for name, t in empty.state_dict().items()}
    found = {name: list(t.shape) for name, t in weights.items()}
    for name in sorted(wanted.keys() | found.keys()):
        size, right = found.get(name, "missing"), wanted.get(name, "absent")
        if size != right:
            raise UserError(
                "the checkpoint's tensors do not fit its config.json: "
                f"{name} would be {size}, not {right}"
            )
    dtype = wide_dtype(weights)
    if share:
        empty.load_state_dict({name: t.to(dtype) for name, t in weights.items()}, assign=True)
        if model_config.tie_embeddings:
            empty.head.weight = empty.embedding.weight
        return empty
    model = SequenceModel(model_config).to(dtype)
    model.load_state_dict(weights)
    return model


def translate(
    config: Mapping[str, Any],
    state: Mapping[str, Tensor],
    *,
    allow_neg_eigval: bool | None = None,
) -> tuple[ModelConfig, Weights]:
    """Return the configuration and the renamed tensors from which `convert` builds the model."""
    _check_types(config, state)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONVERTERS:
        raise unknown("model_type", kind, CONVERTERS)
    options, tensors = Options(config), Tensors(state)
    model_config, weights = CONVERTERS[kind](options, tensors)
    options.finish()
    tensors.finish()
    if allow_neg_eigval and all(mixer.no_switch for mixer in model_config.mixers):
        raise UserError(f"no layer has allow_neg_eigval: {model_config.title} is all there is")
    if allow_neg_eigval is not None:
        mixers = tuple(
            mixer if mixer.no_switch else replace(mixer, allow_neg_eigval=allow_neg_eigval)
            for mixer in model_config.mixers
        )
        same = len(set(mixers)) == 1
        model_config = replace(model_config, mixer=mixers[0] if same else mixers)
    return model_config, weights


def _check_types(config: object, state: object) -> None:
    """Reject a config object or a model: mappings are required."""
    if not isinstance(config, Mapping):
        right = "the keys of a config.json, or model.config.to_dict()"
        raise UserError(f"config must be {right}; got a {type(config).__name__}")
    if not isinstance(state, Mapping):
        right = "tensors by name, or model.state_dict()"
        raise UserError(f"state must be {right}; got a {type(state).__name__}")
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise UserError(f"state must be tensors by name; {name} is a {type(tensor).__name__}")
        if tensor.dtype not in FLOATS:
            right = ", ".join(map(str, FLOATS))
            raise UserError(f"state must be tensors of {right}; {name} is of {tensor.dtype}")


def load_pretrained(folder: str | Path, *, allow_neg_eigval: bool | None = None) -> SequenceModel:
    """Convert a folder with config.json and safetensors, in one file or in shards."""
    return convert(*read_checkpoint(folder), allow_neg_eigval=allow_neg_eigval)


def read_checkpoint(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read config.json and the safetensors of a folder, without converting them."""
    folder = Path(folder)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} must hold an object with keys")
    state: dict[str, Tensor] = {}
    for file in _tensor_files(folder):
        try:
            state.update(safetensors.torch.load_file(regular(file)))
        except (OSError, ValueError, SafetensorError) as error:
            raise unreadable(file, error) from None
    return config, state


def _tensor_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_json(index)
        names = shards.get("weight_map") if isinstance(shards, dict) else None
        if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
            raise UserError(f"{index} must say under weight_map which tensor is in which file")
        for name in names.values():
            if Path(name).name != name or name == "..":
                raise UserError(f"{index} must name files in its own folder; got {name!r}")
        return [folder / name for name in sorted(set(names.values()))]
    whole = folder / "model.safetensors"
    if not whole.is_file():
        raise UserError(f"{folder} has no model.safetensors (pickled weights are not read)")
    return [whole]
