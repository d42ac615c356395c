"""Read the automaton off a model whose states come back: what it computes at every length."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.errors import UserError
from statetrack.models import SequenceModel, State
from statetrack.theory.hardening.tokens import Seen

MAX_STATES = 1024  # of the model, before minimising: seconds of work
AT_ONCE = 16  # states that are followed together
SAME = 1e-3  # states closer than this share of the largest one are the same


@torch.no_grad()
def read_automaton(model: SequenceModel, seen: Seen, vocab: Sequence[str]) -> DFA:
    """The minimal DFA whose outputs are the model's answers, by following every token.

    Its symbols are the tokens that recur; a token that only ever comes first, a BOS, has been read
    at the start. Without one nothing is answered before the first token, and the start has the
    answer that makes the automaton smallest. A model whose states do not come back (within 1e-3)
    has none: a UserError beyond MAX_STATES.
    """
    model = copy.deepcopy(model).double()
    symbols = torch.from_numpy(seen.ids)[seen.recurring]
    first = torch.from_numpy(seen.ids)[~seen.recurring]
    if len(first) > 1:
        names = ", ".join(vocab[i] for i in first.tolist())
        raise UserError(f"an automaton needs one token before the first at most; got {names}")
    start: State = _map(model.init_state(1), Tensor.double)
    said: str | None = None
    if len(first):
        logits, start = model.step(first, start)
        said = vocab[int(logits.argmax())]

    known = start  # the states, as one batch
    rows: list[list[int]] = []  # [state][symbol]: the next state
    answers: list[list[str]] = []
    while len(rows) < _count(known):
        frontier = _part(known, len(rows), AT_ONCE)
        size = _count(frontier)
        logits, after = model.step(
            symbols.repeat(size), _map(frontier, lambda s: s.repeat_interleave(len(symbols), 0))
        )
        texts = [vocab[i] for i in logits.argmax(-1).tolist()]
        known, targets = _merge(known, after)
        for i in range(size):
            part = slice(i * len(symbols), (i + 1) * len(symbols))
            rows.append(targets[part])
            answers.append(texts[part])
        if _count(known) > MAX_STATES:
            raise UserError(
                f"the model has more than {MAX_STATES} states, so that no automaton can be read "
                "off it; only models whose every part is exact have few"
            )
    return _smallest([vocab[i] for i in symbols.tolist()], rows, answers, said)


def _smallest(
    alphabet: list[str], rows: list[list[int]], answers: list[list[str]], said: str | None
) -> DFA:
    """From answers at transitions to answers at states, which are a model's state and an answer."""
    numbers: dict[tuple[int, str | None], int] = {(0, said): 0}
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
    tries = [said] if said is not None else list(dict.fromkeys(later))
    delta, nobody = np.array(table), np.zeros(len(table), dtype=np.bool_)
    made = [DFA(tuple(alphabet), delta, 0, nobody, (answer, *later)) for answer in tries]
    return min((dfa.minimal() for dfa in made), key=lambda dfa: dfa.states)


def agree(read: DFA, task: DFA) -> bool:
    """Whether two automata give the same answers wherever the second one asks.

    One without outputs asks only which words it accepts: the answers for the others and for those
    must then be different.
    """
    if set(read.alphabet) != set(task.alphabet) or read.outputs is None:
        return False
    columns = [read.alphabet.index(symbol) for symbol in task.alphabet]
    pairs: set[tuple[int, int]] = set()  # reached by at least one symbol
    todo = [(read.start, task.start)]
    while todo:
        mine, its = todo.pop()
        for column, target in zip(columns, task.delta[its].tolist(), strict=True):
            pair = (int(read.delta[mine, column]), target)
            if pair not in pairs:
                pairs.add(pair)
                todo.append(pair)
    if task.outputs is not None:
        asked = [(read.outputs[a], task.outputs[b]) for a, b in pairs]
        return all(answer == wanted for answer, wanted in asked if wanted is not None)
    yes, no = ({read.outputs[a] for a, b in pairs if task.accepting[b] == side} for side in (1, 0))
    return not yes & no


def _merge(known: State, after: State) -> tuple[State, list[int]]:
    """The states with the new ones among `after`, and which of them each of `after` is."""
    flat, new = _flatten(known), _flatten(after)
    room = SAME * float(torch.cat([flat, new]).norm(dim=1).max())
    distances, nearest = torch.cdist(new, flat).min(1)
    targets = nearest.tolist()
    fresh: list[int] = []
    for i in torch.nonzero(distances > room).flatten().tolist():
        if fresh:
            distance, place = (new[fresh] - new[i]).norm(dim=1).min(0)
            if distance <= room:
                targets[i] = len(flat) + int(place)
                continue
        targets[i] = len(flat) + len(fresh)
        fresh.append(i)
    grown = [
        type(layer)(*(torch.cat([old, add[fresh]]) for old, add in zip(layer, more, strict=True)))
        for layer, more in zip(known, after, strict=True)
    ]
    return tuple(grown), targets


def _flatten(state: State) -> Tensor:
    """[states, numbers]."""
    return torch.cat([part.flatten(1) for layer in state for part in layer], 1)


def _map(state: State, change: Callable[[Tensor], Tensor]) -> State:
    return tuple(type(layer)(*map(change, layer)) for layer in state)


def _part(state: State, start: int, size: int) -> State:
    return _map(state, lambda s: s[start : start + size])


def _count(state: State) -> int:
    return len(state[0][0])
