"""What a layer says to the rest of the model, and an output projection that says the same again."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from statetrack.layers import GLA, DeltaNet, Mamba
from statetrack.models import SequenceModel
from statetrack.theory.hardening.tokens import Seen

NEAR = 1e-4  # how much it counts that the output projection stays as it was


class Said(NamedTuple):
    """What a layer does with some sequences [B, T] of tokens, at the end."""

    mixed: Tensor  # [B, T, H V]: into the output projection
    out: Tensor  # [B, T, D]: from it


@torch.no_grad()
def said(model: SequenceModel, seen: Seen) -> Said:
    """Run a model on the sequences that were seen."""
    heard: list[Tensor] = []
    with _projection(model, seen).register_forward_hook(
        lambda _, args, out: heard.extend((*args, out))
    ):
        model(seen.tokens)
    return Said(*heard)


@torch.no_grad()
def say(model: SequenceModel, seen: Seen, out: Tensor) -> None:
    """Move the output projection so that the layer says `out`, in place.

    That is by least squares: what one head tells no longer, others may know as well.
    """
    here = seen.place >= 0
    mixed = said(model, seen).mixed[here]
    weight = _projection(model, seen).weight
    gram = mixed.T @ mixed + NEAR * len(mixed) * torch.eye(mixed.shape[1]).double()
    weight += torch.linalg.solve(gram, mixed.T @ (out[here] - mixed @ weight.T)).T


def _projection(model: SequenceModel, seen: Seen) -> nn.Linear:
    layer = seen.mixer(model)
    assert isinstance(layer, DeltaNet | GLA | Mamba)
    return layer.out_proj if isinstance(layer, Mamba) else layer.o_proj
