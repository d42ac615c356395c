"""Find all states of a layer that has finitely many.

Heads, or channels, do not act on each other. So each of these components is explored separately,
from its start state under every token, until no new state is found. In a later layer the effect of
a token depends on the state of the layers below, so a component's state is explored together with
theirs. Two states count as one if their distance is at most STATE_TOLERANCE of the largest norm of
a state, which covers the rounding of float64.

If a token multiplies a channel by a factor a < 1, states never recur exactly; they then count as
one within DECAY_TOLERANCE. Such errors do not add up: a token that lets the channel decay shrinks
earlier errors, and other tokens do not enlarge them, since no transition expands. They stay below
DECAY_TOLERANCE / (1 - a).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.automata.search import TooManyStatesError, reach
from statetrack.errors import UserError
from statetrack.layers import Diagonal
from statetrack.models.block import Block

MAX_MODEL_STATES = 4096  # before minimising; it takes seconds
STATES_AT_ONCE = 16  # explored in one batch
STATE_TOLERANCE = 1e-9
DECAY_TOLERANCE = 1e-3
PROJECTIONS = 8  # random directions in which the nearest known state is searched
MODULUS_TOLERANCE = 1e-9  # within which the modulus of an eigenvalue counts as 0 or 1

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Machine:
    """The joint state machine of a model's first layers."""

    next: Ints  # [states, symbols]; the start is state 0
    stream: Tensor  # [states, symbols, D]: the residual stream after these layers


@dataclass(frozen=True)
class Explored:
    """All states of the P components of a layer."""

    components: list[_Component]
    max_error: Tensor  # [P]: bound on the error of a decaying component, at every length; else 0
    merge_error: float  # as in Reading, without tokens that let a component decay
    separation: float  # as in Reading


def decay_factors(block: Block, below: Machine, name: str) -> Tensor:
    """Return the factor below 1 by which a token multiplies a channel; 0 if it does not decay.

    Args:
        block: of the layer.
        below: the machine of the layers below.
        name: of the layer, for the error.

    Returns:
        [states below, symbols, P].

    Raises:
        UserError: a head with Householder factors decays. It does so along its key only; in other
            directions errors would add up.
    """
    transition = block.mixer.transitions(block.mixer_input(below.stream))
    assert transition is not None
    moduli = transition.eigvals().abs()
    decays = (moduli > MODULUS_TOLERANCE) & (moduli < 1 - MODULUS_TOLERANCE)
    if isinstance(transition, Diagonal):
        return torch.where(decays, moduli, 0.0).flatten(2)
    heads = torch.nonzero(decays.any(-1).flatten(0, 1).any(0)).flatten().tolist()
    if heads:
        names = ", ".join(f"head {h}" for h in heads)
        raise UserError(f"{name} still decays ({names}), so its states never recur")
    return torch.zeros(moduli.shape[:3], dtype=moduli.dtype)


def step_from(block: Block, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Run a block on x [B, D] from states [B, P, s]; return its output and the next states."""
    state = block.mixer.init_state(len(x))
    state = state._replace(**{state._fields[0]: states.view(state[0].shape)})
    out, after = block.step(x, state)
    return out, after[0].reshape(states.shape)


def explore(
    block: Block, below: Machine, start: Tensor, decay: Tensor
) -> tuple[Explored, Ints, Ints]:
    """Find all states of a float64 layer, by component and jointly with the layers below.

    Args:
        block: of the layer.
        below: the machine of the layers below.
        start: the layer's first state, of one sequence: the state of P components of s numbers.
        decay: [states below, symbols, P], from `decay_factors`.

    Returns:
        The components' states; the joint states [states, 1 + P], each the number of a state below
        and of one of each component; and their successors [states, symbols].

    Raises:
        UserError: there are more than MAX_MODEL_STATES.
    """
    try:
        found = _explore(block, below, start.reshape(decay.shape[-1], -1), decay)
        return found, *_combine(found, below)
    except TooManyStatesError:
        raise UserError(
            f"the model has more than {MAX_MODEL_STATES} states, so no automaton can be read "
            "off it; a model has few states only if each head and channel is exact or decays fast"
        ) from None


def _explore(block: Block, below: Machine, start: Tensor, decay: Tensor) -> Explored:
    """Find all states of the components of a float64 layer, from its state `start` [P, s].

    Each round takes one state m of the machine below and runs all symbols from the components'
    states that were found together with m. A batch row has one state of each component; these need
    not occur together, since components do not act on each other.
    """
    components = [_Component(row) for row in start]
    largest, merge_error, symbols = start.norm(dim=1).max(), 0.0, below.next.shape[1]
    while (m := next((m for c in components for m in c.waiting), None)) is not None:
        taken = [component.take(m) for component in components]
        most = max(map(len, taken))
        rows = [some + [0] * (most - len(some)) for some in taken]  # padded with the first state
        here = torch.stack([c.states[r] for c, r in zip(components, rows, strict=True)], 1)
        x = below.stream[m].repeat(most, 1)
        _, after = step_from(block, x, here.repeat_interleave(symbols, 0))  # [most symbols, P, s]
        reached = [after[: len(some) * symbols, p] for p, some in enumerate(taken)]
        largest = max(largest, *(r.norm(dim=1).max() for r in reached if len(r)))
        for p, (component, some) in enumerate(zip(components, taken, strict=True)):
            if some:
                decays = (decay[m, :, p] > 0).repeat(len(some))
                tolerance = largest * torch.where(decays, DECAY_TOLERANCE, STATE_TOLERANCE)
                distances = component.add(some, reached[p], below.next[m], tolerance)
                merge_error = max(merge_error, float(distances.masked_fill(decays, 0.0).max()))
    slowest = decay.amax((0, 1))
    size = float(largest) or 1.0
    return Explored(
        components,
        max_error=torch.where(slowest > 0, DECAY_TOLERANCE * largest / (1 - slowest), 0.0),
        merge_error=merge_error / size,
        separation=min(c.separation() for c in components) / size,
    )


class _Component:
    """The states of one component that were found so far; each has s numbers.

    A state is stored with the state of the machine below with which it occurs. The same numbers
    with two different states below count as two states.
    """

    def __init__(self, start: Tensor) -> None:
        self.states = start[None]  # [n, s]
        self.below = torch.zeros(1, dtype=torch.int64)  # [n]: the state of the machine below
        self.next: dict[int, Ints] = {}  # by state: [symbols]
        self.waiting: dict[int, list[int]] = {0: [0]}  # by state below: those not explored yet

    def take(self, m: int) -> list[int]:
        """Return some of the unexplored states that occur with state m below."""
        waiting = self.waiting.pop(m, [])
        if waiting[STATES_AT_ONCE:]:
            self.waiting[m] = waiting[STATES_AT_ONCE:]
        return waiting[:STATES_AT_ONCE]

    def add(self, states: list[int], after: Tensor, below: Ints, tolerance: Tensor) -> Tensor:
        """Add the states to which the symbols lead.

        Args:
            states: those from which the symbols were run.
            after: [states symbols, s] the states that were reached.
            below: [symbols] the next states of the machine below.
            tolerance: [states symbols] the distance within which states count as one.

        Returns:
            [states symbols] the distance of each reached state from the one that it counts as.
        """
        known = len(self.states)
        beside = torch.from_numpy(below).repeat(len(states))
        targets, distances = self._merge(after, beside, tolerance)
        for state, row in zip(states, targets.view(len(states), -1).numpy(), strict=True):
            self.next[state] = row
        for i, m in enumerate(self.below[known:].tolist(), known):
            self.waiting.setdefault(m, []).append(i)
        if len(self.states) > MAX_MODEL_STATES:
            raise TooManyStatesError
        return distances

    def _merge(self, new: Tensor, beside: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the known states that `new` [m, s] count as, and the distances from them.

        A state that is within the tolerance of no known state is added to the known ones.
        """
        # random projections guess the nearest state; if it is too far, all are compared
        projection = torch.randn(
            new.shape[1], PROJECTIONS, generator=torch.Generator().manual_seed(0)
        ).double()
        exactly = "donot_use_mm_for_euclid_dist"  # with mm, rounding exceeds STATE_TOLERANCE
        guesses = torch.cdist(new @ projection, self.states @ projection, compute_mode=exactly)
        guesses.masked_fill_(beside[:, None] != self.below, torch.inf)
        targets = guesses.argmin(1)
        distances = (new - self.states[targets]).norm(dim=1)
        distances.masked_fill_(beside != self.below[targets], torch.inf)
        for i in torch.nonzero(distances > tolerance).flatten().tolist():
            all_ = (self.states - new[i]).norm(dim=1)
            distances[i], targets[i] = all_.masked_fill(self.below != beside[i], torch.inf).min(0)
            if distances[i] > tolerance[i]:
                distances[i], targets[i] = 0.0, len(self.states)
                self.states = torch.cat([self.states, new[i, None]])
                self.below = torch.cat([self.below, beside[i, None]])
        return targets, distances

    def table(self) -> Ints:
        """Return the next states [n, symbols]."""
        return np.stack([self.next[i] for i in range(len(self.states))])

    def separation(self) -> float:
        """Return the smallest distance of two states that occur with the same state below."""
        if len(self.states) == 1:
            return math.inf
        beside = torch.pdist(self.below[:, None].double()) == 0
        return float(torch.pdist(self.states).masked_fill(~beside, torch.inf).min())


def _combine(found: Explored, below: Machine) -> tuple[Ints, Ints]:
    """Return the joint states that occur, [states, 1 + P], and the next ones, [states, symbols].

    A joint state is the number of a state of the machine below and one of each component.
    """
    tables = [c.table() for c in found.components]
    first = [
        np.arange(len(table)) if decays else merge_equivalent(np.column_stack((c.below, table)))
        for c, table, decays in zip(found.components, tables, found.max_error > 0, strict=True)
    ]
    moving = [p for p, number in enumerate(first) if number.any()]

    def successors(state: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        m, *own = state
        columns = [first[p][tables[p][i]] for p, i in zip(moving, own, strict=True)]
        return map(tuple, np.column_stack((below.next[m], *columns)).tolist())

    joint = reach((0,) * (1 + len(moving)), successors, MAX_MODEL_STATES)
    states = np.zeros((len(joint.states), 1 + len(tables)), dtype=np.int64)
    states[:, [0, *(1 + p for p in moving)]] = joint.states
    return states, np.array(joint.next)


def merge_equivalent(following: Ints) -> Ints:
    """Return for each state the first one with the same successors.

    Answers depend on the state that a token leads to, so no later answer differs between the two.

    Args:
        following: [states, symbols] the next states.

    Returns:
        [states].
    """
    _, first, again = np.unique(following, axis=0, return_index=True, return_inverse=True)
    return first[again.ravel()]


def state_token_batches(
    below: Machine, found: Explored, states: Ints
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a layer's inputs [B, D] and states [B, P, s]: batches of states, each with all symbols.

    Args:
        below: the machine of the layers below.
        found: the states of the layer's components.
        states: [states, 1 + P] the joint states, as `explore` returns them.
    """
    symbols = below.next.shape[1]
    for some in np.split(states, range(STATES_AT_ONCE, len(states), STATES_AT_ONCE)):
        pairs = zip(found.components, some.T[1:], strict=True)
        own = torch.stack([c.states[i] for c, i in pairs], 1)
        yield below.stream[some[:, 0]].flatten(0, 1), own.repeat_interleave(symbols, 0)
