"""The states of a layer's parts, each followed by itself: heads, or channels, never mix.

A part's state is followed from the start under every token until nothing new turns up. In a later
layer what a token does hangs on the state of the layers below, which is followed beside it. Two
states are taken for one if they are within SAME of each other, as a share of the largest one of any
part: in float64 that is rounding. Where a token lets a channel fade, by a factor a < 1, states
never come back, only close; there they are taken for one within FADED. Such errors do not add up: a
token that fades shrinks those from before, and others leave them as they are, since no transition
expands. So they never exceed FADED / (1 - a).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.errors import UserError
from statetrack.layers import GLA, Diagonal, Mamba, Mixer
from statetrack.models.sequence_model import Block

MAX_STATES = 4096  # of the model, before minimising: seconds of work
AT_ONCE = 16  # states that are followed together
SAME = 1e-9
FADED = 1e-3
MIXED = 8
ROUNDING = 1e-9  # of an eigenvalue's modulus


@dataclass(frozen=True)
class Machine:
    """What the first layers of a model are together."""

    next: NDArray[np.int64]  # [states, symbols]; the start is state 0
    stream: Tensor  # [states, symbols, D]: the residual stream behind them when a symbol is read


@dataclass(frozen=True)
class Parts:
    """All states that the P parts of a layer can have, of s numbers each."""

    states: list[Tensor]  # P of [states of the part, s]
    below: list[NDArray[np.int64]]  # P of [states of the part]: the machine's below, beside it
    next: list[NDArray[np.int64]]  # P of [states of the part, symbols]
    off: Tensor  # [P]: how far a part may be from the state it is taken for, at every length
    same: float  # where nothing fades: how far states taken for one are apart at most, as a share
    apart: float  # how far others are apart at least, as a share


def follow(block: Block, below: Machine, start: Tensor, fading: Tensor) -> Parts:
    """The states of every part of a float64 layer, from its state `start` [P, s] on.

    `fading`: what the function of this name says of it.
    """
    parts = [_Part(row) for row in start]
    largest, same, symbols = start.norm(dim=1).max(), 0.0, below.next.shape[1]
    while (m := next((m for part in parts for m in part.waiting), None)) is not None:
        taken = [part.take(m) for part in parts]
        most = max(map(len, taken))
        rows = [some + [0] * (most - len(some)) for some in taken]  # of no part: its first state
        here = torch.stack([part.states[r] for part, r in zip(parts, rows, strict=True)], 1)
        x = below.stream[m].repeat(most, 1)
        _, after = react(block, x, here.repeat_interleave(symbols, 0))  # [most symbols, P, s]
        reached = [after[: len(some) * symbols, p] for p, some in enumerate(taken)]
        largest = max(largest, *(r.norm(dim=1).max() for r in reached if len(r)))
        for p, (part, some) in enumerate(zip(parts, taken, strict=True)):
            if some:
                fades = (fading[m, :, p] > 0).repeat(len(some))
                room = largest * torch.where(fades, FADED, SAME)
                distances = part.add(some, reached[p], below.next[m], room)
                same = max(same, float(distances.masked_fill(fades, 0.0).max()))
    slowest = fading.amax((0, 1))
    off = torch.where(slowest > 0, FADED * largest / (1 - slowest), 0.0)
    size = float(largest) or 1.0
    return Parts(
        states=[part.states for part in parts],
        below=[part.below.numpy() for part in parts],
        next=[np.stack([part.next[i] for i in range(len(part.states))]) for part in parts],
        off=off,
        same=same / size,
        apart=min(part.apart() for part in parts) / size,
    )


class _Part:
    """The states of one part that have turned up."""

    def __init__(self, start: Tensor) -> None:
        self.states = start[None]  # [n, s]
        self.below = torch.zeros(1, dtype=torch.int64)  # [n]
        self.next: dict[int, NDArray[np.int64]] = {}  # by state: [symbols]
        self.waiting: dict[int, list[int]] = {0: [0]}  # by state below: those not followed yet

    def take(self, m: int) -> list[int]:
        """Some of those that wait beside m."""
        waiting = self.waiting.pop(m, [])
        if waiting[AT_ONCE:]:
            self.waiting[m] = waiting[AT_ONCE:]
        return waiting[:AT_ONCE]

    def add(
        self, states: list[int], after: Tensor, below: NDArray[np.int64], room: Tensor
    ) -> Tensor:
        """Where every symbol leads these states, [states symbols, s], and the machine below.

        Returns how far each is off what it is taken for; it may be as far as `room`.
        """
        known = len(self.states)
        beside = torch.from_numpy(below).repeat(len(states))
        targets, distances = self._merge(after, beside, room)
        for state, row in zip(states, targets.view(len(states), -1).numpy(), strict=True):
            self.next[state] = row
        for i, m in enumerate(self.below[known:].tolist(), known):
            self.waiting.setdefault(m, []).append(i)
        if len(self.states) > MAX_STATES:
            raise too_many()
        return distances

    def _merge(self, new: Tensor, beside: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        """Which states `new` [m, s] are, those that are none being added, and how far off."""
        # a few random mixtures of the numbers find the nearest one, if one is the same
        mixture = torch.randn(
            new.shape[1], MIXED, generator=torch.Generator().manual_seed(0)
        ).double()
        exactly = "donot_use_mm_for_euclid_dist"  # the other way has rounding above SAME
        apart = torch.cdist(new @ mixture, self.states @ mixture, compute_mode=exactly)
        apart.masked_fill_(beside[:, None] != self.below, torch.inf)
        targets = apart.argmin(1)
        distances = (new - self.states[targets]).norm(dim=1)
        distances.masked_fill_(beside != self.below[targets], torch.inf)
        for i in torch.nonzero(distances > room).flatten().tolist():
            all_ = (self.states - new[i]).norm(dim=1)
            distances[i], targets[i] = all_.masked_fill(self.below != beside[i], torch.inf).min(0)
            if distances[i] > room[i]:
                distances[i], targets[i] = 0.0, len(self.states)
                self.states = torch.cat([self.states, new[i, None]])
                self.below = torch.cat([self.below, beside[i, None]])
        return targets, distances

    def apart(self) -> float:
        """How far two states beside the same one below are apart at least."""
        if len(self.states) == 1:
            return math.inf
        beside = torch.pdist(self.below[:, None].double()) == 0
        return float(torch.pdist(self.states).masked_fill(~beside, torch.inf).min())


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


def react(block: Block, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """From states [B, P, s] by what comes in, x [B, D]: what goes out, and the next states."""
    state = block.mixer.init_state(len(x))
    state = state._replace(**{state._fields[0]: states.view(state[0].shape)})
    out, after = block.step(x, state)
    return out, flatten(block.mixer, after)


def flatten(mixer: Mixer, state: tuple[Tensor, ...]) -> Tensor:
    """A layer's state as [B, P, s]; there is no convolution, whose window would be more."""
    numbers = state[0]
    if isinstance(mixer, Mamba | GLA):  # a gate for each of two dimensions
        numbers = numbers.flatten(1, 2)
    return numbers.reshape(*numbers.shape[:2], -1)


def fading(block: Block, below: Machine, whose: str) -> Tensor:
    """[states below, symbols, P]: the factor by which a token lets a channel fade, else 0.

    A head of DeltaNet fades along a key alone: what is taken for the same would drift the other
    ways, so that a head that fades is an error. `whose`: how the layer is called there.
    """
    transition = block.mixer.transitions(block.mixer_input(below.stream))
    assert transition is not None
    moduli = transition.eigvals().abs()
    fades = (moduli > ROUNDING) & (moduli < 1 - ROUNDING)
    if isinstance(transition, Diagonal):
        return torch.where(fades, moduli, 0.0).flatten(2)
    heads = torch.nonzero(fades.any(-1).flatten(0, 1).any(0)).flatten().tolist()
    if heads:
        names = ", ".join(f"head {h}" for h in heads)
        raise UserError(f"{whose} still fades ({names}), so that its states never come back")
    return torch.zeros(moduli.shape[:3], dtype=moduli.dtype)
