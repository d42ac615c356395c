"""Words that compiled networks read at once, in chunks, from every state of the DFA."""

from __future__ import annotations

import numpy as np
import torch

from statetrack.automata import DFA
from statetrack.compiler.induction import Ints
from statetrack.compiler.network import CELLS, Carry, CompiledRNN
from statetrack.compiler.reachable import TOKENS


def advance(net: CompiledRNN, coordinates: Ints, symbols: Ints) -> tuple[Ints, list[Ints]]:
    """One symbol each, by the tables of the layers' automata alone.

    coordinates [N, L], symbols [N] -> coordinates [N, L], and the contexts [N] of every layer with,
    at the end, the states of the DFA.
    """
    contexts = [net.first.numpy()[symbols]]
    new = np.empty_like(coordinates)
    for i, layer in enumerate(net.stack):
        old = coordinates[:, i]
        new[:, i] = layer.moves.numpy()[contexts[-1], old]
        told = new[:, i] if i == len(net.stack) - 1 else layer.current(old)
        contexts.append(layer.out.numpy()[contexts[-1], told])
    return new, contexts


def read_whole_words(net: CompiledRNN) -> tuple[str, ...] | None:
    """A random word from every state that can be reached, longer than a chunk of the ops.

    Of many states, with large tables, from some only. The states must be the DFA's and all numbers
    exact; else the word is given back.
    """
    dfa = net.dfa
    states, paths = _paths(dfa)
    rows = np.empty((dfa.states, len(net.stack)), dtype=np.int64)
    rows[dfa.start] = [layer.start for layer in net.stack]
    for before, symbols, after in paths:
        rows[after] = advance(net, rows[before], symbols)[0]
    # at least one, and no more than are read in one go
    cells = max(layer.cells for layer in net.stack)
    part = states[:: -(-len(states) * cells * TOKENS // CELLS)]
    words = np.random.default_rng(0).integers(len(dfa.alphabet), size=(len(part), TOKENS))
    carry = tuple(
        Carry(layer.codewords[column], torch.from_numpy(column))
        for layer, column in zip(net.stack, rows[part].T.copy(), strict=True)
    )
    result = net.run(torch.from_numpy(words), carry, "torch")
    wrong = result.states.numpy() != dfa.run(words, part)
    if not wrong.any() and result.deviation == 0:
        return None
    i = int(wrong.any(axis=1).argmax())
    length = int(wrong[i].argmax()) + 1 if wrong.any() else TOKENS
    way = _path(paths, int(part[i]))
    return tuple(dfa.alphabet[symbol] for symbol in [*way, *words[i, :length].tolist()])


Steps = list[tuple[Ints, Ints, Ints]]  # states, symbols and the new states that they lead to


def _paths(dfa: DFA) -> tuple[Ints, Steps]:
    """The states that can be reached, and the ways to them, breadth first."""
    known = np.zeros(dfa.states, dtype=np.bool_)
    known[dfa.start] = True
    states = np.array([dfa.start])
    paths: Steps = []
    while len(states):
        targets, first = np.unique(dfa.delta[states], return_index=True)
        fresh = ~known[targets]
        rows, symbols = np.divmod(first[fresh], len(dfa.alphabet))
        before, states = states[rows], targets[fresh]
        known[states] = True
        paths.append((before, symbols, states))
    return np.flatnonzero(known), paths


def _path(paths: Steps, state: int) -> list[int]:
    """The symbols that lead to a state."""
    word: list[int] = []
    for before, symbols, after in reversed(paths):
        found = np.flatnonzero(after == state)
        if len(found):
            word.append(int(symbols[found[0]]))
            state = int(before[found[0]])
    return word[::-1]
