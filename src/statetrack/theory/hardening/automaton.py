"""Read the automaton off a model whose states come back: what it computes at every length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.automata import DFA
from statetrack.errors import UserError
from statetrack.models import SequenceModel, State
from statetrack.theory.hardening.parts import (
    AT_ONCE,
    MAX_STATES,
    Parts,
    distinct,
    follow,
    step,
    too_many,
)
from statetrack.theory.hardening.tokens import Seen, window

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
def read_automaton(model: SequenceModel, seen: Seen, vocab: Sequence[str]) -> Reading:
    """The minimal DFA whose outputs are the answers of a float64 model, by following every token.

    Its symbols are the tokens that recur; a token that only ever comes first, a BOS, has been read
    at the start. The model answers tokens; before the first one of these the start has the answer
    that makes the automaton smallest. When two states are the same: see `parts`. A model
    with more than MAX_STATES, or whose answers could hang on how exactly what fades is followed,
    has no automaton, nor has one with a convolution: a UserError.
    """
    if window(model) > 1:
        raise UserError("the model has a convolution, whose window would count as state")
    symbols = torch.from_numpy(seen.ids)[seen.recurring]
    first = torch.from_numpy(seen.ids)[~seen.recurring]
    if len(first) > 1:
        names = ", ".join(vocab[i] for i in first.tolist())
        raise UserError(f"an automaton needs one token before the first at most; got {names}")
    (empty,) = model.init_state(1)
    start: State = (type(empty)(*map(Tensor.double, empty)),)
    if len(first):
        _, start = model.step(first, start)
    parts = follow(model, symbols, start)
    states, rows = _together(parts)
    ids, margin = _answers(model, symbols, parts, states)
    answers = [[vocab[i] for i in line] for line in ids]
    dfa = _smallest([vocab[i] for i in symbols.tolist()], rows, answers)
    apart = parts.apart if parts.apart < np.inf else None
    return Reading(dfa, len(states), parts.same, apart, margin)


def _together(parts: Parts) -> tuple[NDArray[np.int64], list[list[int]]]:
    """The states that can be reached, [states, P], and [state][symbol] the next one."""
    first = [
        np.arange(len(following)) if fades else distinct(following)
        for following, fades in zip(parts.next, parts.off > 0, strict=True)
    ]
    moving = [p for p, number in enumerate(first) if number.any()]
    numbers = {(0,) * len(moving): 0}
    order = list(numbers)
    rows = []
    for state in order:  # grows while it is read
        lines = [first[p][parts.next[p][i]] for p, i in zip(moving, state, strict=True)]
        after = np.stack(lines, 1).tolist() if lines else [[]] * parts.next[0].shape[1]
        row = []
        for target in map(tuple, after):
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
            row.append(numbers[target])
        rows.append(row)
        if len(order) > MAX_STATES:
            raise too_many()
    states = np.zeros((len(order), len(parts.states)), dtype=np.int64)
    states[:, moving] = order
    return states, rows


def _answers(
    model: SequenceModel, symbols: Tensor, parts: Parts, states: NDArray[np.int64]
) -> tuple[list[list[int]], float | None]:
    """[state][symbol]: what the model answers; and the margin where something fades."""
    answers: list[list[int]] = []
    margin, fades = np.inf, bool(parts.off.any())
    for some in np.split(states, range(AT_ONCE, len(states), AT_ONCE)):
        here = torch.stack([s[i] for s, i in zip(parts.states, some.T, strict=True)], 1)
        here = here.repeat_interleave(len(symbols), 0).requires_grad_(fades)  # [B, P, s]
        with torch.set_grad_enabled(fades):
            logits, _ = step(model, here, symbols.repeat(len(some)))
            best, ids = logits.topk(2)
            lead = best[:, 0] - best[:, 1]  # [B]
            total = lead.sum()
        answers += ids[:, 0].view(len(some), -1).tolist()
        if fades:  # to first order the lead changes by the slope times how far off a part is
            (slope,) = torch.autograd.grad(total, here)
            change = (slope.norm(dim=-1) * parts.off).sum(-1)
            margin = min(margin, float((lead / change).min()))
    if margin < SAFE:
        raise UserError(
            "some answer hangs on parts of the model that fade, "
            f"with a margin of {margin:.2g}; an automaton needs {SAFE:g}"
        )
    return answers, margin if fades else None


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
