"""Read the automaton off a model with finitely many states: what it computes at every length.

Heads, or channels, do not act on each other. So each of these components is explored separately,
from its start state under every token, until no new state is found. In a later layer the effect of
a token depends on the state of the layers below, so a component's state is explored together with
theirs. Two states count as one if they are within STATE_TOLERANCE of each other, relative to the
largest state: in float64 that is rounding.

Where a token lets a channel fade by a factor a < 1, states never recur exactly; there they count as
one within FADING_TOLERANCE. Such errors do not add up: a token that lets the channel fade shrinks
earlier errors, and other tokens do not enlarge them, since no transition expands. They stay below
FADING_TOLERANCE / (1 - a).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.automata import DFA
from statetrack.automata.search import TooManyStatesError, reach
from statetrack.errors import UserError
from statetrack.hardening.inputs import LayerInputs, block_of
from statetrack.layers import Diagonal
from statetrack.models import SequenceModel, State
from statetrack.models.sequence_model import Block

MAX_MODEL_STATES = 4096  # before minimising; it takes seconds
STATES_AT_ONCE = 16  # explored in one batch
STATE_TOLERANCE = 1e-9
FADING_TOLERANCE = 1e-3
PROJECTIONS = 8  # random directions in which the nearest known state is searched
MODULUS_TOLERANCE = 1e-9  # within which the modulus of an eigenvalue counts as 0 or 1
MIN_MARGIN = 2.0  # of `Reading.margin`; to first order 1 would be enough

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """An automaton, and how certain it is that the model computes it."""

    dfa: DFA  # minimal; its outputs are the model's answers
    states: int  # of the model, before minimising
    merge_error: float  # largest distance of states that count as one, over the largest norm
    separation: float | None  # smallest distance of two different states; None: there is only one
    # by which factor errors in fading channels could grow before an answer changes, to first order;
    # None: nothing fades
    margin: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "states": self.dfa.states,
            "model_states": self.states,
            "merge_error": self.merge_error,
            "separation": self.separation,
            "margin": self.margin,
            "dfa": self.dfa.to_json(),
        }


@dataclass(frozen=True)
class Machine:
    """The joint state machine of a model's first layers."""

    next: Ints  # [states, symbols]; the start is state 0
    stream: Tensor  # [states, symbols, D]: the residual stream they give for a symbol in a state


@dataclass(frozen=True)
class Explored:
    """All states of the P components of a layer."""

    components: list[_Component]
    max_error: Tensor  # [P]: bound on the error of a fading component, at every length; else 0
    merge_error: float  # as in Reading, without tokens that let a component fade
    separation: float


@torch.no_grad()
def read_automaton(
    model: SequenceModel,
    inputs: LayerInputs,
    vocab: Sequence[str],
    memoryless: Collection[int] = (),
) -> Reading:
    """Return the minimal DFA whose outputs are the answers of a float64 model.

    Its symbols are the tokens that recur. A token that only ever comes first, a BOS, has been read
    in the start state. The model gives answers at tokens, so there is none for the empty word: the
    start state gets the answer that makes the DFA smallest. `memoryless` are layers whose state has
    no effect; it is left out.

    Raises:
        UserError: the model has a convolution or more than MAX_MODEL_STATES states, or an answer
            could depend on how exactly a fading channel is followed.
    """
    blocks = [block_of(model, layer) for layer in range(model.config.num_layers)]
    if any(block.mixer.conv_width > 1 for block in blocks):
        raise UserError("the model has a convolution, whose window would count as state")
    symbols, start = _start(model, inputs, vocab)
    machine = Machine(np.zeros((1, len(symbols)), np.int64), model.embed(symbols)[None])
    merge_error, separation, margin = 0.0, np.inf, None
    for layer, (block, state) in enumerate(zip(blocks, start, strict=True)):
        if layer in memoryless:
            some = machine.stream.flatten(0, 1).split(STATES_AT_ONCE * len(symbols))
            streams = [block.step(x, block.mixer.init_state(len(x)))[0] for x in some]
            machine = replace(machine, stream=torch.cat(streams).view_as(machine.stream))
            continue
        fading = _fading_factors(block, machine, f"layer {layer}" if blocks[1:] else "the model")
        if fading.any() and block is not blocks[-1]:
            why = "so the layers after it get ever new inputs"
            raise UserError(f"layer {layer} of the model still fades, {why}")
        try:
            found = _explore(block, machine, state[0].reshape(fading.shape[-1], -1), fading)
            states, rows = _combine(found, machine)
        except TooManyStatesError:
            raise UserError(
                f"the model has more than {MAX_MODEL_STATES} states, so no automaton can be read "
                "off it; only models whose heads and channels are all exact, or fade fast, have few"
            ) from None
        merge_error = max(merge_error, found.merge_error)
        separation = min(separation, found.separation)
        if fading.any():
            margin = _margin(model, machine, found, states)
        streams = [
            step_from(block, x, here)[0].unflatten(0, (-1, len(symbols)))
            for x, here in _situations(machine, found, states)
        ]
        machine = Machine(rows, torch.cat(streams))
    answers = model.head(model.norm(machine.stream)).argmax(-1).tolist()
    texts = [[vocab[i] for i in line] for line in answers]
    dfa = _smallest([vocab[i] for i in symbols.tolist()], machine.next.tolist(), texts)
    apart = separation if separation < np.inf else None
    return Reading(dfa, len(machine.next), merge_error, apart, margin)


@dataclass(frozen=True)
class Situations:
    """Every state of a model of one layer that makes no errors, beside every token."""

    symbols: Ints  # [symbols]: the tokens that recur
    next: Ints  # [states, symbols]; the start is state 0
    x: Tensor  # [states symbols, D]: the residual stream before the layer
    states: Tensor  # [states symbols, P, s]: the layer's state before the token


@torch.no_grad()
def situations(model: SequenceModel, inputs: LayerInputs, vocab: Sequence[str]) -> Situations:
    """Explore a float64 model of one layer.

    Raises:
        UserError: something in it fades, or it has more than MAX_MODEL_STATES states.
    """
    block = block_of(model, 0)
    symbols, start = _start(model, inputs, vocab)
    machine = Machine(np.zeros((1, len(symbols)), np.int64), model.embed(symbols)[None])
    fading = _fading_factors(block, machine, "the model")
    if fading.any():
        raise UserError("the model still fades")
    try:
        found = _explore(block, machine, start[0][0].reshape(fading.shape[-1], -1), fading)
        states, rows = _combine(found, machine)
    except TooManyStatesError:
        raise UserError(f"the model has more than {MAX_MODEL_STATES} states") from None
    x, own = zip(*_situations(machine, found, states), strict=True)
    return Situations(symbols.numpy(), rows, torch.cat(x), torch.cat(own))


def _start(model: SequenceModel, inputs: LayerInputs, vocab: Sequence[str]) -> tuple[Tensor, State]:
    """Return the tokens that recur, and the state in which the first of them is read."""
    ids = torch.from_numpy(inputs.token_ids)
    symbols, first = ids[inputs.recurring], ids[~inputs.recurring]
    if len(first) > 1:
        names = ", ".join(vocab[i] for i in first.tolist())
        raise UserError(f"an automaton needs one token before the first at most; got {names}")
    start: State = tuple(type(s)(*map(Tensor.double, s)) for s in model.init_state(1))
    if len(first):
        _, start = model.step(first, start)
    return symbols, start


def _fading_factors(block: Block, below: Machine, name: str) -> Tensor:
    """[states below, symbols, P]: the factor by which a token lets a channel fade, else 0.

    Only channels may fade. A head with Householder factors fades along its key but not in other
    directions, where errors would add up, so it raises a UserError; `name` names the layer there.
    """
    transition = block.mixer.transitions(block.mixer_input(below.stream))
    assert transition is not None
    moduli = transition.eigvals().abs()
    fades = (moduli > MODULUS_TOLERANCE) & (moduli < 1 - MODULUS_TOLERANCE)
    if isinstance(transition, Diagonal):
        return torch.where(fades, moduli, 0.0).flatten(2)
    heads = torch.nonzero(fades.any(-1).flatten(0, 1).any(0)).flatten().tolist()
    if heads:
        names = ", ".join(f"head {h}" for h in heads)
        raise UserError(f"{name} still fades ({names}), so its states never recur")
    return torch.zeros(moduli.shape[:3], dtype=moduli.dtype)


def step_from(block: Block, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Run a block on x [B, D] from states [B, P, s]: its output and the next states."""
    state = block.mixer.init_state(len(x))
    state = state._replace(**{state._fields[0]: states.view(state[0].shape)})
    out, after = block.step(x, state)
    return out, after[0].reshape(states.shape)


def _explore(block: Block, below: Machine, start: Tensor, fading: Tensor) -> Explored:
    """Find all states of the components of a float64 layer, from its state `start` [P, s].

    Each round takes one state m of the machine below and runs all symbols from states that the
    components have beside it: a batch row has one state of each component, independently of what
    states occur together.
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
                fades = (fading[m, :, p] > 0).repeat(len(some))
                tolerance = largest * torch.where(fades, FADING_TOLERANCE, STATE_TOLERANCE)
                distances = component.add(some, reached[p], below.next[m], tolerance)
                merge_error = max(merge_error, float(distances.masked_fill(fades, 0.0).max()))
    slowest = fading.amax((0, 1))
    size = float(largest) or 1.0
    return Explored(
        components,
        max_error=torch.where(slowest > 0, FADING_TOLERANCE * largest / (1 - slowest), 0.0),
        merge_error=merge_error / size,
        separation=min(c.separation() for c in components) / size,
    )


class _Component:
    """The states of one component that were found so far; each has s numbers.

    A state of the component is kept together with the state of the machine below: the same numbers
    beside another state below are another state.
    """

    def __init__(self, start: Tensor) -> None:
        self.states = start[None]  # [n, s]
        self.below = torch.zeros(1, dtype=torch.int64)  # [n]: the state of the machine below
        self.next: dict[int, Ints] = {}  # by state: [symbols]
        self.waiting: dict[int, list[int]] = {0: [0]}  # by state below: those not explored yet

    def take(self, m: int) -> list[int]:
        """Take some of the states that wait beside state m below."""
        waiting = self.waiting.pop(m, [])
        if waiting[STATES_AT_ONCE:]:
            self.waiting[m] = waiting[STATES_AT_ONCE:]
        return waiting[:STATES_AT_ONCE]

    def add(self, states: list[int], after: Tensor, below: Ints, tolerance: Tensor) -> Tensor:
        """Add the states `after` [states symbols, s] to which the symbols lead `states`.

        `below` [symbols] are the next states of the machine below. Returns the distance of each
        from the state that it counts as.
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

        Those that are within the tolerance of no known state are added as states of their own.
        """
        # random projections guess the nearest state; if it is too far, all are compared
        projection = torch.randn(
            new.shape[1], PROJECTIONS, generator=torch.Generator().manual_seed(0)
        ).double()
        exactly = "donot_use_mm_for_euclid_dist"  # with mm, rounding exceeds STATE_TOLERANCE
        apart = torch.cdist(new @ projection, self.states @ projection, compute_mode=exactly)
        apart.masked_fill_(beside[:, None] != self.below, torch.inf)
        targets = apart.argmin(1)
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
        """[n, symbols]: the next states."""
        return np.stack([self.next[i] for i in range(len(self.states))])

    def separation(self) -> float:
        """Return the smallest distance of two states beside the same state below."""
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
        np.arange(len(table)) if fades else merge_equivalent(np.column_stack((c.below, table)))
        for c, table, fades in zip(found.components, tables, found.max_error > 0, strict=True)
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
    """[states]: the first state with the same successors [states, symbols] as this one.

    Answers depend on the state that a token leads to, so no later answer differs between the two.
    """
    _, first, again = np.unique(following, axis=0, return_index=True, return_inverse=True)
    return first[again.ravel()]


def _situations(below: Machine, found: Explored, states: Ints) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a layer's inputs [B, D] and states [B, P, s], for some states times all symbols."""
    symbols = below.next.shape[1]
    for some in np.split(states, range(STATES_AT_ONCE, len(states), STATES_AT_ONCE)):
        pairs = zip(found.components, some.T[1:], strict=True)
        own = torch.stack([c.states[i] for c, i in pairs], 1)
        yield below.stream[some[:, 0]].flatten(0, 1), own.repeat_interleave(symbols, 0)


def _margin(model: SequenceModel, below: Machine, found: Explored, states: Ints) -> float:
    """Return by which factor fading errors could grow before an answer changes; see Reading.

    Raises:
        UserError: it is below MIN_MARGIN.
    """
    margin = np.inf
    for x, here in _situations(below, found, states):
        with torch.enable_grad():
            out, _ = step_from(block_of(model, -1), x, here.requires_grad_())
            best, _ = model.head(model.norm(out)).topk(2)
            lead = best[:, 0] - best[:, 1]  # [B]
            (slope,) = torch.autograd.grad(lead.sum(), here)
        change = (slope.norm(dim=-1) * found.max_error).sum(-1)
        margin = min(margin, float((lead / change).min()))
    if margin < MIN_MARGIN:
        raise UserError(
            "some answer depends on components of the model that fade, "
            f"with a margin of {margin:.2g}; an automaton needs {MIN_MARGIN:g}"
        )
    return margin


def _smallest(alphabet: list[str], rows: list[list[int]], answers: list[list[str]]) -> DFA:
    """Return the smallest DFA with these answers, which belong to transitions [states][symbols].

    Its states, before minimising, are pairs of a state and the answer on the way to it. The start
    has no answer: every answer is tried for it.
    """

    def successors(pair: tuple[int, str | None]) -> Iterable[tuple[int, str | None]]:
        return zip(rows[pair[0]], answers[pair[0]], strict=True)

    start: tuple[int, str | None] = (0, None)
    pairs = reach(start, successors)
    later = [answer for _, answer in pairs.states[1:]]
    delta, nobody = np.array(pairs.next), np.zeros(len(pairs.next), dtype=np.bool_)
    made = [
        DFA(tuple(alphabet), delta, 0, nobody, (answer, *later)) for answer in dict.fromkeys(later)
    ]
    return min((dfa.minimal() for dfa in made), key=lambda dfa: dfa.states)


def agree(read: DFA, task: DFA) -> bool:
    """Return whether two automata give the same answers wherever the task's has one.

    If the task's automaton has no outputs, it is enough that no answer is given both to an accepted
    and to a rejected word.
    """
    if set(read.alphabet) != set(task.alphabet) or read.outputs is None:
        return False
    pairs = _reached_pairs(read, task)
    if task.outputs is not None:
        both = [(read.outputs[a], task.outputs[b]) for a, b in pairs]
        return all(answer == wanted for answer, wanted in both if wanted is not None)
    yes, no = ({read.outputs[a] for a, b in pairs if task.accepting[b] == side} for side in (1, 0))
    return not yes & no


def accepting_as(read: DFA, task: DFA) -> DFA:
    """Return `read` with the accepting states of `task`, with which it agrees.

    A state that corresponds to both accepting and rejecting states of the task does not accept.
    """
    pairs = _reached_pairs(read, task) | {(read.start, task.start)}
    yes, no = ({a for a, b in pairs if task.accepting[b] == side} for side in (1, 0))
    accepting = np.isin(np.arange(read.states), sorted(yes - no))
    return replace(read, accepting=accepting)


def _reached_pairs(read: DFA, task: DFA) -> set[tuple[int, int]]:
    """Return the pairs of states that words of at least one symbol lead to."""
    columns = [read.alphabet.index(symbol) for symbol in task.alphabet]

    def successors(pair: tuple[int, int]) -> Iterable[tuple[int, int]]:
        a, b = pair
        return zip(read.delta[a, columns].tolist(), task.delta[b].tolist(), strict=True)

    pairs = reach((read.start, task.start), successors)
    return {pairs.states[i] for row in pairs.next for i in row}
