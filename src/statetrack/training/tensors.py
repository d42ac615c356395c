"""The tensors of a checkpoint, by name: weights and AdamW's moments."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from statetrack.errors import UserError

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's state of each parameter


def training_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Tensor]:
    """Return the weights as model.NAME and AdamW's moments as optimizer.MOMENT.NAME.

    They stay on the device of the model.
    """
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    moments = {} if optimizer is None else optimizer.state
    for name, parameter in model.named_parameters():
        for key in MOMENTS:
            if key in moments.get(parameter, {}):
                tensors[f"optimizer.{key}.{name}"] = moments[parameter][key]
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def restore_tensors(
    tensors: dict[str, Tensor],
    model: nn.Module,
    folder: Path,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
) -> None:
    """Copy a checkpoint's tensors, from any device, into a model and, for step > 0, its optimiser.

    Args:
        tensors: named as `training_tensors` names them.
        model: what gets the weights.
        folder: the run's, for messages.
        optimizer: AdamW over the model's parameters.
        step: how many steps the optimiser has taken.

    Raises:
        UserError: A tensor is missing, unknown, or of another shape or dtype.
    """
    expected = {f"model.{name}": p for name, p in model.named_parameters()}
    found = {name for name in tensors if name.startswith("model.")}
    for name in sorted(expected.keys() ^ found):
        where = "lacks" if name in expected else "has an unknown"
        raise UserError(f"the checkpoint in {folder} {where} tensor {name}")
    for name, parameter in expected.items():
        _check_like(parameter, name, tensors[name], folder)
        parameter.data.copy_(tensors[name])
    if optimizer is None or step == 0:
        return
    for name, parameter in model.named_parameters():
        for key in MOMENTS:
            moment = tensors.get(f"optimizer.{key}.{name}")
            if moment is None:
                lost = f"optimizer.{key}.{name}, as a run needs it to go on"
                raise UserError(f"the checkpoint in {folder} lacks tensor {lost}")
            _check_like(parameter, f"optimizer.{key}.{name}", moment, folder)
        optimizer.state[parameter] = {
            "step": torch.tensor(float(step), device=parameter.device),
            **{
                key: tensors[f"optimizer.{key}.{name}"].to(parameter.device, copy=True)
                for key in MOMENTS
            },
        }


def _check_like(parameter: Tensor, name: str, tensor: Tensor, folder: Path) -> None:
    """Raise a UserError if a tensor's shape or dtype is not the parameter's."""
    for what in ("shape", "dtype"):
        got, right = getattr(tensor, what), getattr(parameter, what)
        if got != right:
            got, right = (list(x) if what == "shape" else x for x in (got, right))
            raise UserError(
                f"the checkpoint in {folder} has {name} of {what} {got}; "
                f"the configuration says {right}"
            )
