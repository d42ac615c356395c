"""The states of a layer's parts, each followed by itself: heads, or channels, never mix.

A part's state is followed from the start under every token until nothing new turns up. Two states
are taken for one if they are within SAME of each other, as a share of the largest one of any part:
in float64 that is rounding. Where a token lets a channel fade, by a factor a < 1, states never come
back, only close; there they are taken for one within FADED. Such errors do not add up: a token that
fades shrinks those from before, and others leave them as they are, since no transition expands. So
they never exceed FADED / (1 - a).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.errors import UserError
from statetrack.layers import GLA, Diagonal, Mamba
from statetrack.models import SequenceModel, State

MAX_STATES = 4096  # of the model, before minimising: seconds of work
AT_ONCE = 16  # states that are followed together
SAME = 1e-9
FADED = 1e-3
MIXED = 8
ROUNDING = 1e-9  # of an eigenvalue's modulus


@dataclass(frozen=True)
class Parts:
    """All states that the P parts of a layer can have, of s numbers each."""

    states: list[Tensor]  # P of [states of the part, s]
    next: list[NDArray[np.int64]]  # P of [states of the part, symbols]
    off: Tensor  # [P]: how far a part may be from the state it is taken for, at every length
    same: float  # where nothing fades: how far states taken for one are apart at most, as a share
    apart: float  # how far others are apart at least, as a share


def follow(model: SequenceModel, symbols: Tensor, start: State) -> Parts:
    """The states of every part of a float64 model's only layer, from `start` on."""
    fading = _fading(model, symbols)  # [symbols, P]
    first = flatten(model, start)[0]  # [P, s]
    states = [row[None] for row in first]
    next_: list[list[Tensor]] = [[] for _ in states]  # P of blocks of [rows, symbols]
    done = [0] * len(states)
    largest, same = first.norm(dim=1).max(), 0.0
    while any(map(int.__lt__, done, map(len, states))):
        rows = torch.arange(AT_ONCE)
        here = torch.stack(
            [s[(d + rows).clamp(max=len(s) - 1)] for s, d in zip(states, done, strict=True)], 1
        )
        _, after = step(
            model, here.repeat_interleave(len(symbols), 0), symbols.repeat(AT_ONCE)
        )  # [AT_ONCE symbols, P, s]
        largest = torch.maximum(largest, after.norm(dim=-1).max())
        for p, known in enumerate(states):
            count = min(AT_ONCE, len(known) - done[p])
            if not count:
                continue
            fades = (fading[:, p] > 0).repeat(count)
            room = largest * torch.where(fades, FADED, SAME)
            states[p], targets, distances = _merge(known, after[: len(room), p], room)
            next_[p].append(targets.view(count, -1))
            done[p] += count
            same = max(same, float(distances.masked_fill(fades, 0.0).max()))
            if len(states[p]) > MAX_STATES:
                raise too_many()
    slowest = fading.amax(0)
    off = torch.where(slowest > 0, FADED * largest / (1 - slowest), 0.0)
    apart = min((float(torch.pdist(s).min()) for s in states if len(s) > 1), default=math.inf)
    size = float(largest) or 1.0
    return Parts(states, [torch.cat(f).numpy() for f in next_], off, same / size, apart / size)


def distinct(following: NDArray[np.int64]) -> NDArray[np.int64]:
    """[states]: the first state that every token leads to the same state as this one.

    Answers depend on the state that a token has led to, so that nothing tells the two apart.
    """
    _, first, again = np.unique(following, axis=0, return_index=True, return_inverse=True)
    return first[again.ravel()]


def too_many() -> UserError:
    """Why there is no automaton."""
    return UserError(
        f"the model has more than {MAX_STATES} states, so that no automaton can be read off it; "
        "only models whose every part is exact, or fades fast, have few"
    )


def step(model: SequenceModel, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """From states [B, P, s] by tokens [B]: logits, and the next states [B, P, s]."""
    (layer,) = model.init_state(len(tokens))
    layer = layer._replace(**{layer._fields[0]: states.view(layer[0].shape)})
    logits, after = model.step(tokens, (layer,))
    return logits, flatten(model, after)


def flatten(model: SequenceModel, state: State) -> Tensor:
    """The only layer's state as [B, P, s]; there is no convolution, whose window would be more."""
    (layer,) = state
    numbers: Tensor = layer[0]
    if isinstance(model.blocks[0].mixer, Mamba | GLA):  # a gate for each of two dimensions
        numbers = numbers.flatten(1, 2)
    return numbers.reshape(*numbers.shape[:2], -1)


def _merge(known: Tensor, new: Tensor, room: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`known` [n, s] and what is new among `new` [m, s]; which each of `new` is, and how far off.

    `room` [m]: how far off it may be.
    """
    # a few random mixtures of the numbers find the nearest one, if there is one that is the same
    mixture = torch.randn(
        known.shape[1], MIXED, generator=torch.Generator().manual_seed(0)
    ).double()
    exactly = "donot_use_mm_for_euclid_dist"  # the other way has rounding above SAME
    targets = torch.cdist(new @ mixture, known @ mixture, compute_mode=exactly).argmin(1)
    distances = (new - known[targets]).norm(dim=1)
    for i in torch.nonzero(distances > room).flatten().tolist():
        distances[i], targets[i] = (known - new[i]).norm(dim=1).min(0)
        if distances[i] > room[i]:
            distances[i], targets[i] = 0.0, len(known)
            known = torch.cat([known, new[i, None]])
    return known, targets, distances


def _fading(model: SequenceModel, symbols: Tensor) -> Tensor:
    """[symbols, P]: the factor by which a token lets a channel fade, else 0.

    A head of DeltaNet fades along a key alone: what is taken for the same would drift the other
    ways, so that a head that fades is an error.
    """
    (transition,) = model.transitions(symbols[None])
    assert transition is not None
    moduli = transition.eigvals()[0].abs()
    fades = (moduli > ROUNDING) & (moduli < 1 - ROUNDING)
    if isinstance(transition, Diagonal):
        return torch.where(fades, moduli, 0.0).flatten(1)
    heads = torch.nonzero(fades.any(-1).any(0)).flatten().tolist()
    if heads:
        names = ", ".join(f"head {h}" for h in heads)
        raise UserError(f"{names} of the model still fade, so that its states never come back")
    return torch.zeros(moduli.shape[:2], dtype=moduli.dtype)
