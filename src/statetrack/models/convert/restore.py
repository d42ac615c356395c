"""The inverse of every conversion: a model's weights under another package's names.

The converters need no inverses of their own. A converter moves rows of tensors and may add a
constant to them, so `translate` on tensors whose rows are numbered tells where each row goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from statetrack.config import hints
from statetrack.errors import UserError
from statetrack.models.config import ModelConfig
from statetrack.models.convert import translate
from statetrack.models.convert.weights import Weights
from statetrack.models.sequence_model import SequenceModel

HEAD = "lm_head.weight"  # checkpoints with a tied head may have it or not
RANGE_KEYS = ("allow_neg_eigval", "linear_allow_neg_eigval")  # of other packages
FREE = {"initializer_range", "mlp_size", "dt_rank", "num_v_heads", "num_kv_heads"}
"""Options that may differ: they do not change the logits, or the shapes of tensors show them."""


def restore(
    model: SequenceModel, config: Mapping[str, Any], like: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Weights]:
    """Return the checkpoint of another package from which `convert` makes this model.

    Args:
        model: a converted model, which may have been trained since, or one with the same options.
        config: the config.json of a checkpoint in the wanted format.
        like: its tensors, whose names, shapes and dtypes count.

    Returns:
        config, with the model's range, and the model's weights as tensors like those in `like`;
        rows that are still as they were converted, and tensors that the conversion leaves out, are
        those of `like`.

    Raises:
        UserError: the checkpoint's options or sizes are not those of the model.
    """
    config = _with_range(model.config, config, like)
    made, renamed = translate(config, like)
    _check_options(model.config, made)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    for name in sorted(weights.keys() | renamed.keys()):
        has, wants = (list(t[name].shape) if name in t else "absent" for t in (weights, renamed))
        if has != wants:
            raise UserError(f"{name} of the model is {has}; in the other package it is {wants}")

    names = [name for name in like if not (made.tie_embeddings and name == HEAD)]
    sizes = torch.tensor([len(like[name]) for name in names])
    starts = sizes.cumsum(0) - sizes
    numbered = {
        name: torch.arange(start, start + len(like[name]), dtype=torch.float64).view(
            [-1] + [1] * (like[name].dim() - 1)
        )
        for name, start in zip(names, starts.tolist(), strict=True)
    }
    places = translate(config, numbered)[1]
    added = translate(config, {name: torch.zeros_like(n) for name, n in numbered.items()})[1]

    out: Weights = {}
    for ours, weight in weights.items():
        constants = added[ours].flatten()
        rows = weight.reshape(len(constants), -1)  # one for each row of their tensors
        kept = (rows == renamed[ours].to(rows.dtype).reshape(rows.shape)).all(1, keepdim=True)
        if constants.any():
            rows = rows - constants[:, None]
        numbers = (places[ours].flatten() - constants).long()
        owners = torch.bucketize(numbers, starts, right=True) - 1
        for owner in owners.unique().tolist():
            name, here = names[owner], owners == owner
            if name not in out:
                out[name] = torch.empty_like(like[name])
            target, old = (t.view(len(t), -1) for t in (out[name], like[name]))
            place = numbers[here] - starts[owner]
            target[place] = torch.where(kept[here], old[place], rows[here].to(target.dtype))
    if HEAD in like and HEAD not in names:
        out[HEAD] = weights["head.weight"].to(like[HEAD].dtype)
    return config, {name: out.get(name, tensor) for name, tensor in like.items()}


def _with_range(
    model: ModelConfig, config: Mapping[str, Any], like: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the configuration with the model's range, where the other package has the option."""
    ranges = [[m.allow_neg_eigval for m in c.mixers] for c in (model, translate(config, like)[0])]
    if ranges[0] != ranges[1]:
        for key in RANGE_KEYS:
            with suppress(UserError):  # the other package does not know the key
                changed = {**config, key: any(ranges[0])}
                translate(changed, like)
                return changed
    return dict(config)


def _check_options(model: ModelConfig, made: ModelConfig) -> None:
    """Raise a UserError that names the first option in which they differ."""
    model, made = (replace(config, mixer=config.mixers) for config in (model, made))
    pairs: list[tuple[Any, Any]] = [(model, made)]
    if [m.name for m in model.mixers] == [m.name for m in made.mixers]:
        pairs = [*zip(model.mixers, made.mixers, strict=True), (model, made)]
    for ours, theirs in pairs:
        for name in hints(type(ours)):
            has, wants = getattr(ours, name), getattr(theirs, name)
            if name not in FREE and has != wants and not (name == "mixer" and len(pairs) > 1):
                raise UserError(f"{name} of the model is {has}; in the other package it is {wants}")
