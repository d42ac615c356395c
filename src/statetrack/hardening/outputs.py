"""What a layer says to the rest of the model, and an output projection that says the same again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statetrack.hardening.tokens import Seen
from statetrack.layers import GLA, DeltaNet, Mamba
from statetrack.models import SequenceModel

NEAR = 1e-4  # how much it counts that the output projection stays as it was


@torch.no_grad()
def said(model: SequenceModel, seen: Seen) -> Tensor:
    """[B, T, D]: what comes out of the layer on the sequences that were seen."""
    heard: list[Tensor] = []
    with seen.mixer(model).register_forward_hook(lambda _, args, out: heard.append(out[0])):
        model(seen.tokens)
    return heard[0]


@torch.no_grad()
def say(model: SequenceModel, seen: Seen, out: Tensor) -> None:
    """Move the output projection so that the layer says `out`, in place.

    That is by least squares: what one head tells no longer, others may know as well.
    """
    projection, heard = _projection(model, seen), []
    with projection.register_forward_pre_hook(lambda _, args: heard.append(args[0])):
        model(seen.tokens)
    here = seen.place >= 0
    mixed, weight = heard[0][here], projection.weight  # [N, H V], [D, H V]
    gram = mixed.T @ mixed + NEAR * len(mixed) * torch.eye(mixed.shape[1]).double()
    weight += torch.linalg.solve(gram, mixed.T @ (out[here] - mixed @ weight.T)).T


def _projection(model: SequenceModel, seen: Seen) -> nn.Linear:
    layer = seen.mixer(model)
    assert isinstance(layer, DeltaNet | GLA | Mamba)
    return layer.out_proj if isinstance(layer, Mamba) else layer.o_proj
