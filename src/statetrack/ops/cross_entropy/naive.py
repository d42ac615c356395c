"""The definition of the cross-entropy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.errors import UserError
from statetrack.kernels.transforms import transformed


def check_targets(targets: Tensor, classes: int, ignore_index: int) -> None:
    """Every target must be a class or `ignore_index`."""
    wrong = targets[((targets < 0) | (targets >= classes)) & (targets != ignore_index)]
    if len(wrong):
        raise UserError(
            f"cross_entropy: targets must be from 0 to {classes - 1} or ignore_index = "
            f"{ignore_index}; got {int(wrong[0])}"
        )


def cross_entropy_naive(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """Mean of -log softmax(logits)[target] over the targets that count."""
    if not (torch.compiler.is_compiling() or transformed() or targets.is_meta):  # needs values
        check_targets(targets, logits.shape[1], ignore_index)
    return F.cross_entropy(logits, targets, ignore_index=ignore_index)
