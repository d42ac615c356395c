"""Start a run from the weights of another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from statetrack.config import to_dict
from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.training.config import RunConfig
from statetrack.training.run_folder import Run

BY_TOKEN = ("embedding.weight", "head.weight", "head.bias")  # parameters with a row per token


def start_from(model: SequenceModel, config: RunConfig, source: Path) -> dict[str, Any]:
    """Copy the weights of a trained or compiled run into a new model.

    Task, lengths and training may differ, the model may not, except for the vocabulary: then
    embedding and head of the tokens with the same name are copied, and the other rows stay as they
    were initialised.

    Args:
        model: the new model, whose weights are overwritten.
        config: the new run's configuration.
        source: the folder of the other run.

    Returns:
        The source, its step and the number of tokens without trained weights, for the metrics.

    Raises:
        UserError: the models differ, or the vocabularies have no token in common.
    """
    run = Run.open(source)
    old, new = run.config.model, config.model
    same_size = replace(old, vocab_size=new.vocab_size)
    if same_size != new:
        where = difference("model", to_dict(same_size), to_dict(new))
        raise UserError(f"{source} has another model: {where}")
    step, tensors = run.load()
    tokens = _shared_tokens(run.config, config, source)
    for name, parameter in model.named_parameters():
        values = tensors.get(f"model.{name}")
        if values is None:
            raise UserError(f"the checkpoint in {source} lacks tensor model.{name}")
        if name in BY_TOKEN:
            parameter.data[list(tokens)] = values[list(tokens.values())].to(parameter.dtype)
        elif values.shape != parameter.shape:
            raise UserError(f"{name} depends on the vocabulary, which differs from {source}")
        else:
            parameter.data.copy_(values)
    return {"from": str(source), "from_step": step, "new_tokens": new.vocab_size - len(tokens)}


def _shared_tokens(old: RunConfig, new: RunConfig, source: Path) -> dict[int, int]:
    """Return, by new token id, the old id of the token with the same name."""
    ids = {name: i for i, name in enumerate(old.task.vocab)}
    shared = {i: ids[name] for i, name in enumerate(new.task.vocab) if name in ids}
    if not shared:
        raise UserError(f"{new.task.name} has no token in common with {old.task.name} of {source}")
    return shared


def difference(where: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    """Name the first option in which two configurations differ, and its values."""
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        path = f"{where}.{name}" if where else name
        if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            before, after = ({str(i): v for i, v in enumerate(x)} for x in (before, after))
        if isinstance(before, dict) and isinstance(after, dict):
            return difference(path, before, after)
        return f"{path}: {before!r}, not {after!r}"
    raise AssertionError("they are the same")
