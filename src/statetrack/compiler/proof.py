"""Proofs for words of any length: level by level, or by visiting every reachable state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.automata import DFA
from statetrack.errors import UserError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Word = tuple[str, ...]
State = Any  # for every layer a NamedTuple of tensors, batch first
# symbols [B, T] and states -> the DFA's states that are read off [B, T], states after the symbols
Read = Callable[[Tensor, State], tuple[Tensor, State]]

CHUNK_TOKENS = 65  # of a word that is read at once: more than a chunk of the ops
ROWS = 4096  # that are read at once


@dataclass(frozen=True)
class Proof:
    """The result of an attempted proof: it holds for all words, or a word refutes it."""

    claim: str
    evidence: str  # what was checked
    counterexample: tuple[str, ...] | None = None  # a shortest word after which something is wrong
    reason: str = ""
    certificate: dict[str, Any] | None = None  # of a network or model: see `Compiled.certificate`

    @property
    def holds(self) -> bool:
        """Whether the claim is proved."""
        return self.counterexample is None

    def __str__(self) -> str:
        if self.counterexample is None:
            return f"Proved for words of any length: {self.claim} ({self.evidence})"
        word = " ".join(self.counterexample) or "the empty word"
        return f"Refuted: {self.claim}; after {word}: {self.reason}"


def check_levels(
    dfa: DFA,
    first: Ints,
    start: Sequence[int],
    levels: Sequence[tuple[Ints, Ints, Bools]],
    tree: Sequence[Ints],
) -> int | None:
    """Prove level by level that a cascade computes a DFA.

    Claim: if the states of the levels stand for a state of the DFA, then after any symbol they
    stand for the DFA's next state. It suffices to go down the levels with every combination that
    can occur of an update rule, the node of `tree` before the symbol, the node after it, and the
    symbol: far fewer than there are states of the cascade. Each level has moves, out and which
    steps are right, all [rules, states]; `first`, `start` and `tree` are those of `Cascade`.

    Returns the number of steps that were checked, or None if they do not prove the claim.
    """
    node = 0
    for table, state in zip(tree, start, strict=True):
        node = int(table[node, state]) if node >= 0 else -1
    if node != dfa.start:
        return None
    steps = 0
    rule, symbol = first, np.arange(len(dfa.alphabet))
    old = new = np.zeros_like(symbol)
    for i, ((moves, out, right), table) in enumerate(zip(levels, tree, strict=True)):
        moved, before = moves[rule], table[old]  # [N, states]
        after = table[new[:, None], moved]
        occurs = before >= 0
        if (occurs & ((after < 0) | ~right[rule])).any():
            return None
        steps += int(occurs.sum())
        if i == len(levels) - 1:
            wrong = dfa.delta[before, symbol[:, None]] != after
            wrong |= out[rule[:, None], moved] != after
            return None if (occurs & wrong).any() else steps
        columns = [out[rule], before, after, np.broadcast_to(symbol[:, None], before.shape)]
        sizes = [int(column.max()) + 1 for column in columns]
        codes = np.unique(np.ravel_multi_index([column[occurs] for column in columns], sizes))
        rule, old, new, symbol = np.unravel_index(codes, sizes)
    return steps


class LevelStates(NamedTuple):
    """The states of the levels of a cascade, as one layer's state."""

    numbers: Tensor  # [N, levels]


class Mistake(NamedTuple):
    """A word after which a network is wrong: a shortest one, unless it was read in chunks."""

    word: Word
    reason: str


class ModelStates(NamedTuple):
    """Pairs of a network's state and the DFA's state that some word leads to.

    `automata.search.Reached` holds hashable states one by one; these are batches of tensors, since
    a network steps thousands of states at once.
    """

    states: State
    dfa_states: Ints  # [N]
    parents: Ints  # [N]: the pair that each was found from, times the number of symbols, + symbol
    keys: set[bytes] | None  # of all pairs that can be reached; None if these are only some

    def steps(self, symbols: int, rows: int = ROWS) -> Iterator[tuple[Ints, Ints]]:
        """Yield every pair with every symbol: the numbers of pairs and the symbols, in batches."""
        size = max(1, rows // symbols)
        for at in range(0, len(self.dfa_states), size):
            part = np.arange(at, min(at + size, len(self.dfa_states)))
            yield np.repeat(part, symbols), np.tile(np.arange(symbols), len(part))


def explore(
    read: Read, start: State, dfa: DFA, max_states: int, rows: int = ROWS
) -> ModelStates | Mistake:
    """Visit all states that can be reached symbol by symbol, breadth first.

    Returns:
        The states, if the DFA's state could be read off each of them; else a shortest word after
        which it could not.

    Raises:
        UserError: more than `max_states` states can be reached.
    """
    symbols = len(dfa.alphabet)
    first = np.array([dfa.start])
    found = [ModelStates(start, first, np.zeros(1, dtype=np.int64), None)]
    keys = {_keys(start, first)[0].tobytes()}
    begin = 0  # number of the batch's first pair
    for batch in found:  # which grows meanwhile
        for old, letters in batch.steps(symbols, rows):
            answers, after = read(torch.from_numpy(letters)[:, None], take(batch.states, old))
            right, got = dfa.delta[batch.dfa_states[old], letters], answers[:, 0].cpu().numpy()
            parents = (begin + old) * symbols + letters
            if (got != right).any():
                i = int((got != right).argmax())
                above = np.concatenate([part.parents for part in found])
                word = (*_word(above, begin + old[i], dfa), dfa.alphabet[letters[i]])
                return Mistake(word, f"state {got[i]} instead of {right[i]}")
            new_keys = _keys(after, right)
            _, places = np.unique(new_keys, return_index=True)
            fresh = [i for i in np.sort(places) if new_keys[i].tobytes() not in keys]
            if fresh:
                keys.update(new_keys[i].tobytes() for i in fresh)
                rest = np.array(fresh)
                found.append(ModelStates(take(after, rest), right[rest], parents[rest], None))
            if len(keys) > max_states:
                raise UserError(
                    f"more than {max_states:,} states can be reached, the most that this proof was "
                    f"allowed (max_states); the DFA has {dfa.states:,}"
                )
        begin += len(batch.dfa_states)
    layers = zip(*(part.states for part in found), strict=True)
    states = tuple(type(same[0])(*map(torch.cat, zip(*same, strict=True))) for same in layers)
    every = [np.concatenate(column) for column in zip(*(part[1:3] for part in found), strict=True)]
    return ModelStates(states, every[0], every[1], keys)


def read_in_chunks(
    read: Read, reached: ModelStates, dfa: DFA, stride: int = 1, rows: int = ROWS
) -> Mistake | None:
    """Read a random word at once, as the ops' chunks do, from every state or every `stride`-th.

    The DFA's states must be read off all along, and the last state must be one of `reached.keys`.
    """
    rng = np.random.default_rng(0)
    pairs = np.arange(0, len(reached.dfa_states), stride)
    for part in np.split(pairs, range(0, len(pairs), max(1, rows // CHUNK_TOKENS))[1:]):
        words = rng.integers(len(dfa.alphabet), size=(len(part), CHUNK_TOKENS))
        answers, after = read(torch.from_numpy(words), take(reached.states, part))
        got, right = answers.cpu().numpy(), dfa.run(words, reached.dfa_states[part])
        wrong = got != right
        if reached.keys is not None:
            ends = _keys(after, right[:, -1])
            wrong[:, -1] |= [key.tobytes() not in reached.keys for key in ends]
        if wrong.any():
            i = int(wrong.any(axis=1).argmax())
            t = int(wrong[i].argmax())
            letters = [dfa.alphabet[symbol] for symbol in words[i, : t + 1]]
            reason = f"state {got[i, t]} instead of {right[i, t]}"
            if got[i, t] == right[i, t]:
                reason = "numbers that do not occur token by token"
            reason += ", when the word is read at once"
            return Mistake((*_word(reached.parents, part[i], dfa), *letters), reason)
    return None


def _word(parents: Ints, number: int, dfa: DFA) -> Word:
    """The word by which a pair was found."""
    word = []
    while number:
        number, symbol = divmod(int(parents[number]), len(dfa.alphabet))
        word.append(dfa.alphabet[symbol])
    return tuple(word[::-1])


def take(states: State, rows: Ints) -> State:
    """Select rows of a batch of states."""
    index = torch.from_numpy(rows).to(states[0][0].device)
    return tuple(type(layer)(*(tensor[index] for tensor in layer)) for layer in states)


def row_keys(tensors: list[Tensor]) -> Any:
    """[N]: all bits of each row of some tensors, as one value to compare."""
    flat = [tensor.flatten(1).float().cpu() + 0.0 for tensor in tensors]  # no -0
    rows = torch.cat(flat, 1).numpy()
    return rows.view(f"V{rows.itemsize * rows.shape[1]}")[:, 0]


def _keys(states: State, dfa_states: Ints) -> Any:
    every = [tensor for layer in states for tensor in layer]
    return row_keys([*every, torch.from_numpy(dfa_states)[:, None]])
