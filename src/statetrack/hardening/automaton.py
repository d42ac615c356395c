"""Read the automaton off a model with finitely many states: what it computes at every length."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.automata.search import reach
from statetrack.errors import UserError
from statetrack.hardening.exploration import (
    STATES_AT_ONCE,
    Explored,
    Ints,
    Machine,
    decay_factors,
    explore,
    state_token_batches,
    step_from,
)
from statetrack.hardening.inputs import LayerInputs, block_of
from statetrack.models import SequenceModel, State

MIN_MARGIN = 2.0  # of `Reading.margin`; to first order 1 would be enough


@dataclass(frozen=True)
class Reading:
    """An automaton, and how certain it is that the model computes it."""

    dfa: DFA  # minimal; its outputs are the model's answers
    states: int  # of the model, before minimising
    merge_error: float  # largest distance of states that count as one, over the largest norm
    separation: float | None  # smallest distance of two different states; None: there is only one
    # the factor by which errors in decaying channels could grow before an answer changes, to first
    # order; None: nothing decays
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


@torch.no_grad()
def read_automaton(
    model: SequenceModel,
    inputs: LayerInputs,
    vocab: Sequence[str],
    memoryless: Collection[int] = (),
) -> Reading:
    """Return the minimal DFA whose outputs are the answers of a float64 model.

    Its symbols are the tokens that recur. A token that occurs at the first position only, a BOS, is
    read before the start state. The model gives answers at tokens, so there is none for the empty
    word: the start state gets the answer that makes the DFA smallest.

    Args:
        model: an exact model in float64.
        inputs: the inputs of its first layer.
        vocab: the names of its tokens.
        memoryless: layers whose state has no effect; these states are left out.

    Raises:
        UserError: the model has a convolution or more than MAX_MODEL_STATES states, or an answer
            could change within the error of a decaying channel's states.
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
        decay = decay_factors(block, machine, f"layer {layer}" if blocks[1:] else "the model")
        if decay.any() and block is not blocks[-1]:
            raise UserError(
                f"layer {layer} has channels that decay, so the layers after it get infinitely "
                "many distinct inputs"
            )
        found, states, rows = explore(block, machine, state[0], decay)
        merge_error = max(merge_error, found.merge_error)
        separation = min(separation, found.separation)
        if decay.any():
            margin = _margin(model, machine, found, states)
        streams = [
            step_from(block, x, here)[0].unflatten(0, (-1, len(symbols)))
            for x, here in state_token_batches(machine, found, states)
        ]
        machine = Machine(rows, torch.cat(streams))
    answers = model.head(model.norm(machine.stream)).argmax(-1).tolist()
    texts = [[vocab[i] for i in line] for line in answers]
    dfa = _smallest([vocab[i] for i in symbols.tolist()], machine.next.tolist(), texts)
    known = separation if separation < np.inf else None
    return Reading(dfa, len(machine.next), merge_error, known, margin)


@dataclass(frozen=True)
class StateTokenPairs:
    """All pairs of a state and a token of an exact model of one layer."""

    symbols: Ints  # [symbols]: the tokens that recur
    next: Ints  # [states, symbols]; the start is state 0
    x: Tensor  # [states symbols, D]: the residual stream before the layer
    states: Tensor  # [states symbols, P, s]: the layer's state before the token

    @property
    def distinct(self) -> Tensor:
        """The layer's states, each once: [states, P, s]."""
        return self.states[:: len(self.symbols)]


@torch.no_grad()
def list_state_token_pairs(
    model: SequenceModel, inputs: LayerInputs, vocab: Sequence[str]
) -> StateTokenPairs:
    """List all pairs of a state and a token of a float64 model of one layer.

    Raises:
        UserError: a head or channel decays, or it has more than MAX_MODEL_STATES states.
    """
    block = block_of(model, 0)
    symbols, start = _start(model, inputs, vocab)
    machine = Machine(np.zeros((1, len(symbols)), np.int64), model.embed(symbols)[None])
    decay = decay_factors(block, machine, "the model")
    if decay.any():
        raise UserError("the model has channels that decay, so its states never recur")
    found, states, rows = explore(block, machine, start[0][0], decay)
    x, own = zip(*state_token_batches(machine, found, states), strict=True)
    return StateTokenPairs(symbols.numpy(), rows, torch.cat(x), torch.cat(own))


def _start(model: SequenceModel, inputs: LayerInputs, vocab: Sequence[str]) -> tuple[Tensor, State]:
    """Return the tokens that recur, and the state before the first of them."""
    ids = torch.from_numpy(inputs.token_ids)
    symbols, first = ids[inputs.recurring], ids[~inputs.recurring]
    if len(first) > 1:
        names = ", ".join(vocab[i] for i in first.tolist())
        raise UserError(
            f"at most one token may occur at the first position only (a BOS); got {names}"
        )
    start: State = tuple(type(s)(*map(Tensor.double, s)) for s in model.init_state(1))
    if len(first):
        _, start = model.step(first, start)
    return symbols, start


def _margin(model: SequenceModel, below: Machine, found: Explored, states: Ints) -> float:
    """Return the factor by which errors of decaying channels could grow; see `Reading.margin`.

    Raises:
        UserError: it is below MIN_MARGIN.
    """
    margin = np.inf
    for x, here in state_token_batches(below, found, states):
        with torch.enable_grad():
            out, _ = step_from(block_of(model, -1), x, here.requires_grad_())
            best, _ = model.head(model.norm(out)).topk(2)
            lead = best[:, 0] - best[:, 1]  # [B]
            (slope,) = torch.autograd.grad(lead.sum(), here)
        change = (slope.norm(dim=-1) * found.max_error).sum(-1)
        margin = min(margin, float((lead / change).min()))
    if margin < MIN_MARGIN:
        raise UserError(
            "some answer depends on components of the model that decay: "
            f"the margin is {margin:.2g}, an automaton needs {MIN_MARGIN:g}"
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
    delta, accepting = np.array(pairs.next), np.zeros(len(pairs.next), dtype=np.bool_)
    made = [
        DFA(tuple(alphabet), delta, 0, accepting, (answer, *later))
        for answer in dict.fromkeys(later)
    ]
    return min((dfa.minimal() for dfa in made), key=lambda dfa: dfa.states)
