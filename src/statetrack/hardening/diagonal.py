"""Round the gates of a layer whose transitions are diagonal.

A gate close to 1 becomes 1, and its input then writes nothing; a gate close to -1 becomes -1. All
other gates decay. They become 0 if the model stays as good, so that it has finitely many states and
an automaton can be read off it. Accuracy on long sequences does not need gates of 0, since errors
in a decaying channel do not accumulate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from statetrack.hardening.candidate import SLOW, Candidate, Component
from statetrack.hardening.inputs import LayerInputs
from statetrack.layers import Diagonal, Mixer
from statetrack.layers.inverse import DependentError
from statetrack.models import SequenceModel

GATE_TOLERANCES = (0.005, 0.02, 0.1, 0.3)  # tried: the most by which a gate is rounded to 1 or -1
ZERO_BELOW = (1.0, 0.5, 0.0)  # tried: other gates of at most this modulus become 0
DECAYS_SLOWLY = (
    f"a gate of modulus between {SLOW:g} and 1 decays too slowly to show at the training lengths"
)
DRIFTS = "two tokens flip it, perhaps about different points, so its state may drift"


@dataclass(frozen=True)
class RoundedGates:
    """The rounded gates of C channels with N gates each, for n inputs."""

    targets: Tensor  # [n, C, N]: 1, -1 or 0, or NaN for gates that are not rounded
    decays: Tensor  # [n, C, N] bool: not rounded, and not 0
    rounded: Tensor  # [C] bool: whether a gate of the channel is rounded
    slow: Tensor  # [C] bool: whether a gate decays with a modulus above SLOW, or it may drift
    drifts: Tensor  # [C] bool: whether two inputs flip it, perhaps about different points
    error: Tensor  # [C]: the most by which a gate was rounded to 1 or -1


def round_gates(
    gates: Tensor, recurring: Tensor, tolerance: float, zero_below: float, shared_step_size: bool
) -> RoundedGates:
    """Round gates near 1 and -1 to these, and small ones to 0.

    With a shared step size (Mamba) gate j is 2 exp(-rate_j * step(input)) - 1, and all N gates of a
    channel share the step size. It is 1 if the step size is 0. It is -1 if the rate is very large,
    and then for all inputs whose step size is not 0. It is 0 only if rate and step size match,
    which is arranged for one input at most.

    Args:
        gates: [n, C, N], for each input.
        recurring: [n] bool; gates of inputs that do not recur are not rounded.
        tolerance: the most by which a gate is rounded to 1 or -1.
        zero_below: other gates of at most this modulus become 0.
        shared_step_size: whether the N gates of a channel share a step size.
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
    decays = acts & ~flips & ~zeros & (gates != 0)
    off = torch.where(keeps[..., None], 1 - gates, torch.where(flips, 1 + gates, 0.0))
    drifts = (flips.sum(0) > 1).any(-1)
    targets = torch.full_like(gates, torch.nan).masked_fill(keeps[..., None], 1.0)
    return RoundedGates(
        targets=targets.masked_fill(flips, -1.0).masked_fill(zeros, 0.0),
        decays=decays,
        rounded=keeps.any(0) | (flips | zeros).any(0).any(-1),
        slow=(decays & (gates.abs() > SLOW)).any(0).any(-1) | drifts,
        drifts=drifts,
        error=off.abs().amax((0, 2)),
    )


def candidates(
    model: SequenceModel, inputs: LayerInputs, orders: Sequence[int]
) -> Iterator[Candidate]:
    """Yield every rounding of the layer that is tried; `orders` is for reflections only."""
    mixer = inputs.mixer(model)
    gates = read_gates(mixer, inputs.x)
    for tolerance, zero_below, silence_slow in product(GATE_TOLERANCES, ZERO_BELOW, (True, False)):
        rounded = round_gates(
            gates, inputs.recurring, tolerance, zero_below, mixer.shared_step_size
        )
        slow = rounded.slow
        silent = slow if silence_slow else torch.zeros_like(slow)  # channels that are never written
        if not rounded.rounded.any() or (silence_slow and not slow.any()):
            continue  # nothing is exact, or there is no channel to silence
        components = tuple(
            Component(
                f"channel {c}",
                error=float(rounded.error[c]) if rounded.rounded[c] and not slow[c] else None,
                reason=(DRIFTS if rounded.drifts[c] else DECAYS_SLOWLY) if slow[c] else None,
                memory_removed=bool(silent[c]),
            )
            for c in torch.nonzero(rounded.rounded | slow).flatten().tolist()
        )
        try:
            made = inputs.replace_mixer(model, mixer.with_gates(inputs.x, rounded.targets, silent))
        except DependentError:
            continue
        inexact = int((slow & ~silent).sum()), int(rounded.decays[:, ~silent].sum())
        settings = {"tolerance": tolerance, "zero_below": zero_below, "silence_slow": silence_slow}
        yield Candidate(made, settings, components, inexact)


@torch.no_grad()
def read_gates(mixer: Mixer, x: Tensor) -> Tensor:
    """Return the gates [n, C, N] for inputs x [n, D].

    For the layer's convolution each input is repeated, as if it had also come before itself.
    """
    transition = mixer.transitions(x[:, None].expand(-1, mixer.conv_width, -1))
    assert isinstance(transition, Diagonal)
    values = transition.values[:, -1]
    return values if mixer.shared_step_size else values.flatten(1)[..., None]
