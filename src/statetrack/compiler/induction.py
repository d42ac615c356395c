"""Proof by induction: from the start, all that can be reached behaves as the DFA does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import DFA
from statetrack.compiler.wording import counted
from statetrack.errors import UserError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# coordinates [N, L], symbols [N] -> coordinates [N, L] and the state [N] after it, and whether a
# step itself went wrong [N]
Step = Callable[[Ints, Ints], tuple[Ints, Ints, Bools]]

SLAB = 65_536  # steps at once
MAX_STATES = 100_000


@dataclass(frozen=True)
class Proof:
    """What an induction found: a proof for all words, or a word that refutes it."""

    claim: str
    evidence: str  # what was looked at
    counterexample: tuple[str, ...] | None = None  # a shortest word after which something is wrong
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is proved."""
        return self.counterexample is None

    def __str__(self) -> str:
        if self.counterexample is None:
            return f"proved: {self.claim} ({self.evidence})"
        word = " ".join(self.counterexample) or "the empty word"
        return f"refuted: {self.claim}; after {word}: {self.reason}"


def by_levels(
    dfa: DFA,
    first: Ints,
    start: Sequence[int],
    levels: Sequence[tuple[Ints, Ints, Bools]],
    tree: Sequence[Ints],
) -> int | None:
    """How many steps of levels were checked, if they prove the whole; else None.

    `tree` decodes coordinates, one level after the other, and has -1 for those that stand for
    nothing. What is proved: whatever coordinates stand for a state, a symbol makes of them
    coordinates that stand for the state that the DFA goes to. For that it is enough to go down the
    levels (moves, out, and which steps are right, all [contexts, width]) with all that can occur of
    a context, the node before, the node after and the symbol: far fewer than cascade states.
    """
    node = 0
    for table, coordinate in zip(tree, start, strict=True):
        node = int(table[node, coordinate]) if node >= 0 else -1
    if node != dfa.start:
        return None
    steps = 0
    context, symbol = first, np.arange(len(dfa.alphabet))
    old = new = np.zeros_like(symbol)
    for i, ((moves, out, right), table) in enumerate(zip(levels, tree, strict=True)):
        moved, before = moves[context], table[old]  # [N, width]
        after = table[new[:, None], moved]
        occurs = before >= 0
        if (occurs & ((after < 0) | ~right[context])).any():
            return None
        steps += int(occurs.sum())
        if i == len(levels) - 1:
            wrong = dfa.delta[before, symbol[:, None]] != after
            wrong |= out[context[:, None], moved] != after
            return None if (occurs & wrong).any() else steps
        parts = [out[context], before, after, np.broadcast_to(symbol[:, None], before.shape)]
        sizes = [int(part.max()) + 1 for part in parts]
        codes = np.unique(np.ravel_multi_index([part[occurs] for part in parts], sizes))
        context, old, new, symbol = np.unravel_index(codes, sizes)
    return steps


def induct(
    dfa: DFA,
    claim: str,
    start: Ints,
    step: Step,
    explain: Callable[[Ints, int], str],
    max_states: int = MAX_STATES,
) -> Proof:
    """Breadth first over pairs of coordinates [L] and the DFA's state that can be reached.

    `explain` says what went wrong in a step from given coordinates on a symbol, if that was not
    just the state after it. More than `max_states` pairs are a UserError.
    """
    symbols = len(dfa.alphabet)
    first = np.append(start, dfa.start)
    pairs = [first[None]]  # blocks [N, L + 1] in the order in which they were found
    parents: list[Ints] = [np.zeros(1, dtype=np.int64)]  # of each: its parent * symbols + symbol
    seen = {first.tobytes()}
    found, done = 1, 0
    for block in pairs:  # grows while it is read
        for at in range(0, len(block), max(1, SLAB // symbols)):
            part = block[at : at + max(1, SLAB // symbols)]
            letters = np.tile(np.arange(symbols), len(part))
            old = part.repeat(symbols, axis=0)
            new, states, wrong = step(old[:, :-1], letters)
            right = dfa.delta[old[:, -1], letters]
            wrong = wrong | (states != right)
            if wrong.any():
                i = int(wrong.argmax())
                word = (*_word(dfa, parents, done + i // symbols), dfa.alphabet[letters[i]])
                reason = explain(old[i, :-1], int(letters[i]))
                reason = reason or f"state {states[i]} instead of {right[i]}"
                return Proof(claim, counted(done * symbols + i + 1, "step"), word, reason)
            rows, places = np.unique(np.column_stack([new, right]), axis=0, return_index=True)
            fresh = [i for i, row in enumerate(rows) if row.tobytes() not in seen]
            if fresh:
                seen.update(rows[i].tobytes() for i in fresh)
                found += len(fresh)
                pairs.append(rows[fresh])
                parents.append(done * symbols + places[fresh])
            if found > max_states:
                raise UserError(
                    f"more than {max_states:,} states can be reached, the most that this proof "
                    f"was allowed (max_states); the DFA has {dfa.states:,}"
                )
            done += len(part)
    steps = counted(found * symbols, "step")
    return Proof(claim, f"all {steps} from {counted(found, 'state')}")


def _word(dfa: DFA, parents: list[Ints], pair: int) -> list[str]:
    """A shortest word that leads to a pair, by its number."""
    numbers = np.concatenate(parents)
    word = []
    while pair:
        pair, symbol = divmod(int(numbers[pair]), len(dfa.alphabet))
        word.append(dfa.alphabet[symbol])
    return word[::-1]
