"""What each gate of a diagonal layer is meant to do: keep, flip, forget, or let fade."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statetrack.hardening.reflections import SLOW


@dataclass(frozen=True)
class Roles:
    """By token n, channel C and state N of the channel."""

    keeps: Tensor  # [n, C]: 1 and writes nothing
    flips: Tensor  # [n, C, N]: -1
    forgets: Tensor  # [n, C, N]: 0
    fades: Tensor  # [n, C, N]: as it was
    moved: Tensor  # [C]: has one of the first three
    slow: Tensor  # [C]: has a gate that fades too slowly for training to show, or drifts
    drifts: Tensor  # [C]: two tokens flip it, about a point each: both together move it further
    error: Tensor  # [C]: how far gates were from the end, 1 or -1, that they are moved to


def assign(gates: Tensor, recurring: Tensor, tau: float, zero: float, alike: bool) -> Roles:
    """The roles of gates [n, C, N], those within tau of an end, or `zero` of 0, meant for it.

    `alike`: the states of a channel have a rate each, and a token has a step size for all of them.
    So a state flips for all tokens that do not keep it, or for none, and is 0 for one at most.
    """
    here = recurring[:, None]
    keeps = here & (gates.mean(-1) > 1 - tau)  # [n, C]
    acts = (here & ~keeps)[..., None]  # [n, C, 1]
    flips = acts & (gates < tau - 1)
    if alike:
        flips = flips & (flips | ~acts).all(0)
    forgets = acts & ~flips & (gates.abs() <= zero)
    if alike:
        forgets = forgets & (acts.sum(0) == 1)
    fades = acts & ~flips & ~forgets & (gates != 0)
    left = fades & (gates.abs() > SLOW)
    off = torch.where(keeps[..., None], 1 - gates, torch.where(flips, 1 + gates, 0.0))
    drifts = (flips.sum(0) > 1).any(-1)
    return Roles(
        keeps=keeps,
        flips=flips,
        forgets=forgets,
        fades=fades,
        moved=keeps.any(0) | (flips | forgets).any(0).any(-1),
        slow=left.any(0).any(-1) | drifts,
        drifts=drifts,
        error=off.abs().amax((0, 2)),
    )
