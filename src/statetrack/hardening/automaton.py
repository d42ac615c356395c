"""Read the automaton off a model whose states come back: what it computes at every length."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.automata import DFA
from statetrack.errors import UserError
from statetrack.hardening.parts import (
    AT_ONCE,
    MAX_STATES,
    Machine,
    Parts,
    distinct,
    fading,
    flatten,
    follow,
    react,
    too_many,
)
from statetrack.hardening.tokens import Seen, block_of, window
from statetrack.models import SequenceModel, State

SAFE = 2.0  # the least margin: to first order 1 would do


@dataclass(frozen=True)
class Reading:
    """An automaton, and how sure it is that it is the model's."""

    dfa: DFA  # minimal; its outputs are the model's answers
    states: int  # of the model, before minimising
    same: float  # how far states taken for one are apart at most, as a share of the largest
    apart: float | None  # how far others are apart at least; None: there is one state
    margin: float | None  # how many times further off what fades might be; None: nothing fades

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "states": self.dfa.states,
            "model_states": self.states,
            "same": self.same,
            "apart": self.apart,
            "margin": self.margin,
            "dfa": self.dfa.to_json(),
        }


@torch.no_grad()
def read_automaton(
    model: SequenceModel, seen: Seen, vocab: Sequence[str], idle: Collection[int] = ()
) -> Reading:
    """The minimal DFA whose outputs are the answers of a float64 model, by following every token.

    Its symbols are the tokens that recur; a token that only ever comes first, a BOS, has been read
    at the start. The model answers tokens; before the first one of these the start has the answer
    that makes the automaton smallest. When two states are the same: see `parts`. A model
    with more than MAX_STATES, or whose answers could hang on how exactly what fades is followed,
    has no automaton, nor has one with a convolution: a UserError. Layers in `idle` say the same
    whatever their state is, which is left out.
    """
    blocks = [block_of(model, layer) for layer in range(model.config.num_layers)]
    if any(window(block.mixer) > 1 for block in blocks):
        raise UserError("the model has a convolution, whose window would count as state")
    symbols = torch.from_numpy(seen.ids)[seen.recurring]
    first = torch.from_numpy(seen.ids)[~seen.recurring]
    if len(first) > 1:
        names = ", ".join(vocab[i] for i in first.tolist())
        raise UserError(f"an automaton needs one token before the first at most; got {names}")
    start: State = tuple(type(s)(*map(Tensor.double, s)) for s in model.init_state(1))
    if len(first):
        _, start = model.step(first, start)
    machine = Machine(np.zeros((1, len(symbols)), np.int64), model._embed(symbols)[None])
    same, apart, margin = 0.0, np.inf, None
    for layer, (block, its) in enumerate(zip(blocks, start, strict=True)):
        if layer in idle:
            some = machine.stream.flatten(0, 1).split(AT_ONCE * len(symbols))
            said = [block.step(x, block.mixer.init_state(len(x)))[0] for x in some]
            machine = replace(machine, stream=torch.cat(said).view_as(machine.stream))
            continue
        fades = fading(block, machine, f"layer {layer}" if blocks[1:] else "the model")
        if fades.any() and block is not blocks[-1]:
            why = "so that the layers after it see ever new inputs"
            raise UserError(f"layer {layer} of the model still fades, {why}")
        parts = follow(block, machine, flatten(block.mixer, its)[0], fades)
        states, rows = _together(parts, machine)
        same, apart = max(same, parts.same), min(apart, parts.apart)
        if fades.any():
            margin = _margin(model, machine, parts, states)
        streams = [
            react(block, x, here)[0].unflatten(0, (-1, len(symbols)))
            for x, here in _situations(machine, parts, states)
        ]
        machine = Machine(rows, torch.cat(streams))
    answers = model.head(model.norm(machine.stream)).argmax(-1).tolist()
    texts = [[vocab[i] for i in line] for line in answers]
    dfa = _smallest([vocab[i] for i in symbols.tolist()], machine.next.tolist(), texts)
    return Reading(dfa, len(machine.next), same, apart if apart < np.inf else None, margin)


def _together(parts: Parts, below: Machine) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The states that can be reached, [states, 1 + P], and the next ones, [states, symbols].

    The first number of a state is the machine's below, the others are the parts'.
    """
    first = [
        np.arange(len(following)) if fades else distinct(np.column_stack((beside, following)))
        for beside, following, fades in zip(parts.below, parts.next, parts.off > 0, strict=True)
    ]
    moving = [p for p, number in enumerate(first) if number.any()]
    numbers = {(0,) * (1 + len(moving)): 0}
    order = list(numbers)
    rows = []
    for m, *own in order:  # grows while it is read
        lines = [first[p][parts.next[p][i]] for p, i in zip(moving, own, strict=True)]
        row = []
        for target in map(tuple, np.column_stack((below.next[m], *lines)).tolist()):
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
            row.append(numbers[target])
        rows.append(row)
        if len(order) > MAX_STATES:
            raise too_many()
    states = np.zeros((len(order), 1 + len(parts.states)), dtype=np.int64)
    states[:, [0, *(1 + p for p in moving)]] = order
    return states, np.array(rows)


def _situations(
    below: Machine, parts: Parts, states: NDArray[np.int64]
) -> Iterator[tuple[Tensor, Tensor]]:
    """What comes into a layer, [B, D], and its own state, [B, P, s]: some states x all symbols."""
    symbols = below.next.shape[1]
    for some in np.split(states, range(AT_ONCE, len(states), AT_ONCE)):
        own = torch.stack([s[i] for s, i in zip(parts.states, some.T[1:], strict=True)], 1)
        yield below.stream[some[:, 0]].flatten(0, 1), own.repeat_interleave(symbols, 0)


def _margin(model: SequenceModel, below: Machine, parts: Parts, states: NDArray[np.int64]) -> float:
    """How many times further off what fades in the last layer might be, to first order."""
    margin = np.inf
    for x, here in _situations(below, parts, states):
        with torch.enable_grad():
            out, _ = react(block_of(model, -1), x, here.requires_grad_())
            best, _ = model.head(model.norm(out)).topk(2)
            lead = best[:, 0] - best[:, 1]  # [B]
            (slope,) = torch.autograd.grad(lead.sum(), here)
        change = (slope.norm(dim=-1) * parts.off).sum(-1)
        margin = min(margin, float((lead / change).min()))
    if margin < SAFE:
        raise UserError(
            "some answer hangs on parts of the model that fade, "
            f"with a margin of {margin:.2g}; an automaton needs {SAFE:g}"
        )
    return margin


def _smallest(alphabet: list[str], rows: list[list[int]], answers: list[list[str]]) -> DFA:
    """From answers at transitions to answers at states, which are a model's state and an answer."""
    numbers: dict[tuple[int, str | None], int] = {(0, None): 0}
    order = list(numbers)
    table = []
    for state, _ in order:  # grows while it is read
        row = []
        for pair in zip(rows[state], answers[state], strict=True):
            if pair not in numbers:
                numbers[pair] = len(order)
                order.append(pair)
            row.append(numbers[pair])
        table.append(row)
    later = [answer for _, answer in order[1:]]
    delta, nobody = np.array(table), np.zeros(len(table), dtype=np.bool_)
    tries = dict.fromkeys(later)
    made = [DFA(tuple(alphabet), delta, 0, nobody, (answer, *later)) for answer in tries]
    return min((dfa.minimal() for dfa in made), key=lambda dfa: dfa.states)


def agree(read: DFA, task: DFA) -> bool:
    """Whether two automata give the same answers wherever the second one asks.

    One without outputs asks only which words it accepts: the answers for the others and for those
    must then be different.
    """
    if set(read.alphabet) != set(task.alphabet) or read.outputs is None:
        return False
    pairs = _reached(read, task)
    if task.outputs is not None:
        asked = [(read.outputs[a], task.outputs[b]) for a, b in pairs]
        return all(answer == wanted for answer, wanted in asked if wanted is not None)
    yes, no = ({read.outputs[a] for a, b in pairs if task.accepting[b] == side} for side in (1, 0))
    return not yes & no


def accepting_as(read: DFA, task: DFA) -> DFA:
    """An automaton that agrees with the task's, accepting what that one does, as far as it can.

    It cannot where it has one state for two of the task's of which one accepts.
    """
    pairs = _reached(read, task) | {(read.start, task.start)}
    yes, no = ({a for a, b in pairs if task.accepting[b] == side} for side in (1, 0))
    accepting = np.isin(np.arange(read.states), sorted(yes - no))
    return replace(read, accepting=accepting)


def _reached(read: DFA, task: DFA) -> set[tuple[int, int]]:
    """The pairs of states that words of at least one symbol lead to."""
    columns = [read.alphabet.index(symbol) for symbol in task.alphabet]
    pairs: set[tuple[int, int]] = set()
    todo = [(read.start, task.start)]
    while todo:
        mine, its = todo.pop()
        for column, target in zip(columns, task.delta[its].tolist(), strict=True):
            pair = (int(read.delta[mine, column]), target)
            if pair not in pairs:
                pairs.add(pair)
                todo.append(pair)
    return pairs
