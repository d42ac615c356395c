"""All states that a model can get into by reading symbols, if these are finitely many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.theory.induction import Ints


class Mistake(NamedTuple):
    """A shortest word after which a model is wrong."""

    word: tuple[str, ...]
    told: int
    right: int


def explore(
    model: SequenceModel, dfa: DFA, told: Callable[[Tensor], Tensor], max_states: int
) -> int | Mistake:
    """How many pairs of a model's state, bit for bit, and the DFA's can be reached, or a mistake.

    Symbol s is token s + 1; `told` reads the DFA's state from logits. Breadth first, all states of
    one length of words at once.
    """
    state = model.init_state(1)
    numbers = np.array([dfa.start])  # the DFA's states
    words: list[tuple[str, ...]] = [()]
    seen = set(_keys(state, numbers))
    while words:
        found: list[Any] = []
        found_numbers: list[int] = []
        found_words: list[tuple[str, ...]] = []
        for symbol, text in enumerate(dfa.alphabet):
            logits, after = model.step(torch.full((len(words),), symbol + 1), state)
            right, answers = dfa.delta[numbers, symbol], told(logits).numpy()
            wrong = np.flatnonzero(answers != right)
            if len(wrong):
                i = int(wrong[0])
                return Mistake((*words[i], text), int(answers[i]), int(right[i]))
            fresh = []
            for i, key in enumerate(_keys(after, right)):
                if key not in seen:
                    seen.add(key)
                    fresh.append(i)
                    found_words.append((*words[i], text))
            if fresh:
                found.append(_rows(after, fresh))
                found_numbers += right[fresh].tolist()
            if len(seen) > max_states:
                raise UserError(
                    f"more than {max_states:,} states can be reached, the most that this proof was "
                    f"allowed (max_states); the DFA has {dfa.states:,}"
                )
        if found:
            state = _stack(found)
        numbers, words = np.array(found_numbers), found_words
    return len(seen)


def _keys(state: Any, numbers: Ints) -> list[bytes]:
    """All bits of each row's state, with a number."""
    parts = [tensor.flatten(1).float() + 0.0 for layer in state for tensor in layer]  # no -0
    rows = torch.cat(parts, 1).numpy()
    return [row.tobytes() + int(n).to_bytes(4) for row, n in zip(rows, numbers, strict=True)]


def _rows(state: Any, rows: list[int]) -> Any:
    return tuple(type(layer)(*(tensor[rows] for tensor in layer)) for layer in state)


def _stack(states: list[Any]) -> Any:
    layers = zip(*states, strict=True)
    return tuple(type(same[0])(*map(torch.cat, zip(*same, strict=True))) for same in layers)
