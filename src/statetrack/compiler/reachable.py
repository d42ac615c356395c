"""All states that a model can get into by reading symbols, if these are finitely many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.compiler.induction import Ints
from statetrack.errors import UserError

Word = tuple[str, ...]
# symbols [B, T], a model's state -> the DFA's states that it tells [B, T], its state after them
Read = Callable[[Tensor, Any], tuple[Tensor, Any]]

ROWS = 4096  # read at once
TOKENS = 65  # of a word that is read as a whole: more than a chunk of the ops


class Mistake(NamedTuple):
    """A word after which a model is wrong: a shortest one, unless it was read as a whole."""

    word: Word
    told: int
    right: int


class Reached(NamedTuple):
    """Pairs of a model's state, bit for bit, and the DFA's."""

    states: Any  # of the model, batch first
    numbers: Ints  # of the DFA's states
    words: list[Word]  # that lead there
    keys: set[bytes]


def explore(read: Read, start: Any, dfa: DFA, max_states: int) -> Reached | Mistake:
    """What a model can get into, symbol by symbol, or a mistake; breadth first."""
    states, numbers = start, np.array([dfa.start])
    words: list[Word] = [()]
    seen = set(_keys(states, numbers))
    found = [(states, numbers)]
    all_words = [*words]
    symbols = len(dfa.alphabet)
    while words:
        fresh: list[tuple[Any, Ints]] = []
        fresh_words: list[Word] = []
        for at in range(0, len(words), max(1, ROWS // symbols)):
            part = range(at, min(at + max(1, ROWS // symbols), len(words)))
            old, letters = np.repeat(part, symbols), np.tile(np.arange(symbols), len(part))
            told, after = read(torch.from_numpy(letters)[:, None], _rows(states, old))
            right, answers = dfa.delta[numbers[old], letters], told[:, 0].numpy()
            wrong = np.flatnonzero(answers != right)
            if len(wrong):
                i = int(wrong[0])
                word = (*words[old[i]], dfa.alphabet[letters[i]])
                return Mistake(word, int(answers[i]), int(right[i]))
            new = []
            for i, key in enumerate(_keys(after, right)):
                if key not in seen:
                    seen.add(key)
                    new.append(i)
                    fresh_words.append((*words[old[i]], dfa.alphabet[letters[i]]))
            if new:
                fresh.append((_rows(after, np.array(new)), right[new]))
            if len(seen) > max_states:
                raise UserError(
                    f"more than {max_states:,} states can be reached, the most that this proof was "
                    f"allowed (max_states); the DFA has {dfa.states:,}"
                )
        words = fresh_words
        if words:
            states, numbers = _stack(fresh)
            found.append((states, numbers))
            all_words += words
    states, numbers = _stack(found)
    return Reached(states, numbers, all_words, seen)


def read_whole_words(read: Read, reached: Reached, dfa: DFA) -> Mistake | None:
    """From every state that can be reached a random word at once, as the ops' chunks read it.

    It must tell the DFA's states all along and lead to one of the states that can be reached.
    """
    rng = np.random.default_rng(0)
    for at in range(0, len(reached.numbers), max(1, ROWS // TOKENS)):
        part = np.arange(at, min(at + max(1, ROWS // TOKENS), len(reached.numbers)))
        symbols = rng.integers(len(dfa.alphabet), size=(len(part), TOKENS))
        told, after = read(torch.from_numpy(symbols), _rows(reached.states, part))
        right = np.empty_like(symbols)
        numbers = reached.numbers[part]
        for t, letters in enumerate(symbols.T):
            right[:, t] = numbers = dfa.delta[numbers, letters]
        wrong = told.numpy() != right
        astray = np.array([key not in reached.keys for key in _keys(after, numbers)])
        for i in np.flatnonzero(wrong.any(axis=1) | astray).tolist():
            t = int(wrong[i].argmax()) if wrong[i].any() else TOKENS - 1
            letters = [dfa.alphabet[symbol] for symbol in symbols[i, : t + 1]]
            return Mistake((*reached.words[part[i]], *letters), int(told[i, t]), int(right[i, t]))
    return None


def _keys(state: Any, numbers: Ints) -> list[bytes]:
    """All bits of each row's state, with a number."""
    parts = [tensor.flatten(1).float() + 0.0 for layer in state for tensor in layer]  # no -0
    rows = torch.cat(parts, 1).numpy()
    return [row.tobytes() + int(n).to_bytes(4) for row, n in zip(rows, numbers, strict=True)]


def _rows(state: Any, rows: Ints) -> Any:
    index = torch.from_numpy(rows)
    return tuple(type(layer)(*(tensor[index] for tensor in layer)) for layer in state)


def _stack(parts: list[tuple[Any, Ints]]) -> tuple[Any, Ints]:
    layers = zip(*(states for states, _ in parts), strict=True)
    stacked = tuple(type(same[0])(*map(torch.cat, zip(*same, strict=True))) for same in layers)
    return stacked, np.concatenate([numbers for _, numbers in parts])
