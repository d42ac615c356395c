"""Proofs for words of any length, by induction over the levels of a cascade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import DFA

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


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
            return f"proved: {self.claim} ({self.evidence})"
        word = " ".join(self.counterexample) or "the empty word"
        return f"refuted: {self.claim}; after {word}: {self.reason}"


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
    symbol: far fewer than there are states of the cascade.

    Args:
        dfa: what the cascade should compute.
        first: [symbols], the first level's update rules.
        start: the state in which each level starts.
        levels: moves, out and which steps are right, all [rules, states], for each level.
        tree: decodes the levels' states, see `Cascade`; -1 for what stands for nothing.

    Returns:
        The number of steps that were checked, or None if they do not prove the claim.
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
