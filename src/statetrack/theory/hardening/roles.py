"""What each gate of a diagonal layer is meant to do: keep, flip, or let fade."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statetrack.theory.hardening.reflections import SLOW


@dataclass(frozen=True)
class Roles:
    """By token n, channel C and state N of the channel."""

    keeps: Tensor  # [n, C]: 1 and writes nothing
    flips: Tensor  # [n, C, N]: -1
    moved: Tensor  # [C]: has one of these
    slow: Tensor  # [C]: has another gate that fades too slowly, or two that cannot be had together
    error: Tensor  # [C]: how far gates were from the ends they are moved to


def assign(gates: Tensor, recurring: Tensor, tau: float, alike: bool) -> Roles:
    """The roles of gates [n, C, N], those within tau of an end being meant for it.

    `alike`: a state of a channel flips for all tokens that do not keep it, or for none.
    """
    here = recurring[:, None]
    keeps = here & (gates.mean(-1) > 1 - tau)  # [n, C]
    acts = (here & ~keeps)[..., None]  # [n, C, 1]
    flips = acts & (gates < tau - 1)
    if alike:
        flips = flips & (flips | ~acts).all(0)
    left = acts & ~flips & (gates.abs() > SLOW)
    off = torch.where(keeps[..., None], 1 - gates, torch.where(flips, 1 + gates, 0.0))
    return Roles(
        keeps=keeps,
        flips=flips,
        moved=keeps.any(0) | flips.any(0).any(-1),
        slow=left.any(0).any(-1),
        error=off.abs().amax((0, 2)),
    )
