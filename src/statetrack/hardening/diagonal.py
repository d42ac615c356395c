"""Round the gates of a layer whose transitions are diagonal.

A gate close to 1 becomes 1 and writes nothing; a gate close to -1 becomes -1. The others let their
channel fade. They become 0 if the model stays as good, so that its states recur; for long sequences
that is not needed, since errors in what fades do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.search import SLOW, Candidate, Component
from statetrack.layers import Diagonal, Mixer
from statetrack.layers.inverse import DependentError
from statetrack.models import SequenceModel

GATE_TOLERANCES = (0.005, 0.02, 0.1, 0.3)  # of a gate from 1 or -1
ZERO_BELOW = (1.0, 0.5, 0.0)  # other gates of at most this modulus become 0
FADES_SLOWLY = "a gate fades more slowly than training shows"
DRIFTS = "two tokens flip it, but not about the same point"


@dataclass(frozen=True)
class RoundedGates:
    """What n inputs do to C channels with N gates each."""

    targets: Tensor  # [n, C, N]: 1, -1, 0, or NaN for gates that are left
    fades: Tensor  # [n, C, N] bool: left, and not 0
    rounded: Tensor  # [C] bool: has a gate that is not left
    slow: Tensor  # [C] bool: a gate fades too slowly for training to show, or the channel drifts
    drifts: Tensor  # [C] bool: two inputs flip it, each about a point of its own
    error: Tensor  # [C]: how far gates were from 1 or -1 at most


def round_gates(
    gates: Tensor, recurring: Tensor, tolerance: float, zero_below: float, shared_step_size: bool
) -> RoundedGates:
    """Round gates [n, C, N] within `tolerance` of 1 and -1, and others within `zero_below` of 0.

    With a shared step size each of a channel's N gates has a rate and an input has one step size
    for all of them. So a gate is -1 for all inputs that do not keep it, or for none, and 0 for at
    most one.
    """
    here = recurring[:, None]
    keeps = here & (gates.mean(-1) > 1 - tolerance)  # [n, C]
    acts = (here & ~keeps)[..., None]  # [n, C, 1]
    flips = acts & (gates < tolerance - 1)
    if shared_step_size:
        flips = flips & (flips | ~acts).all(0)
    zeros = acts & ~flips & (gates.abs() <= zero_below)
    if shared_step_size:
        zeros = zeros & (acts.sum(0) == 1)
    fades = acts & ~flips & ~zeros & (gates != 0)
    off = torch.where(keeps[..., None], 1 - gates, torch.where(flips, 1 + gates, 0.0))
    drifts = (flips.sum(0) > 1).any(-1)
    targets = torch.full_like(gates, torch.nan).masked_fill(keeps[..., None], 1.0)
    return RoundedGates(
        targets=targets.masked_fill(flips, -1.0).masked_fill(zeros, 0.0),
        fades=fades,
        rounded=keeps.any(0) | (flips | zeros).any(0).any(-1),
        slow=(fades & (gates.abs() > SLOW)).any(0).any(-1) | drifts,
        drifts=drifts,
        error=off.abs().amax((0, 2)),
    )


def candidates(
    model: SequenceModel, inputs: LayerInputs, orders: Sequence[int]
) -> Iterator[Candidate]:
    """Yield every rounding of the layer that is tried; `orders` is for reflections only."""
    mixer = inputs.mixer(model)
    gates = read_gates(mixer, inputs.x)
    for tolerance, zero_below, silence in product(GATE_TOLERANCES, ZERO_BELOW, (True, False)):
        rounded = round_gates(
            gates, inputs.recurring, tolerance, zero_below, mixer.shared_step_size
        )
        slow = rounded.slow
        silent = slow if silence else torch.zeros_like(slow)
        if not rounded.rounded.any() or (silence and not slow.any()):
            continue
        components = tuple(
            Component(
                f"channel {c}",
                error=float(rounded.error[c]) if rounded.rounded[c] and not slow[c] else None,
                reason=(DRIFTS if rounded.drifts[c] else FADES_SLOWLY) if slow[c] else None,
                memory_removed=bool(silent[c]),
            )
            for c in torch.nonzero(rounded.rounded | slow).flatten().tolist()
        )
        try:
            made = inputs.replace_mixer(model, mixer.with_gates(inputs.x, rounded.targets, silent))
        except DependentError:
            continue
        left = int((slow & ~silent).sum()), int(rounded.fades[:, ~silent].sum())
        settings = {"tolerance": tolerance, "zero_below": zero_below, "silence_slow": silence}
        yield Candidate(made, settings, components, left)


@torch.no_grad()
def read_gates(mixer: Mixer, x: Tensor) -> Tensor:
    """Return the gates [n, C, N] for inputs x [n, D], each as if no other came before it."""
    transition = mixer.transitions(x[:, None].expand(-1, mixer.conv_width, -1))
    assert isinstance(transition, Diagonal)
    values = transition.values[:, -1]
    return values if mixer.shared_step_size else values.flatten(1)[..., None]
