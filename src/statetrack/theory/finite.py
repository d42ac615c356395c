"""Models whose training has gone astray are told so before anything is computed of them."""

from __future__ import annotations

import torch
from torch import nn

from statetrack.errors import UserError


def check_finite(model: nn.Module) -> None:
    """Refuse a model with weights that are no numbers."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise UserError(f"{name} of the model has entries that are infinite or undefined")
