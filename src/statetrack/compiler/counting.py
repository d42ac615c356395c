"""What a language counts modulo some m, and who cannot (Theorems 1 and 2, Proposition 1.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from statetrack.automata import DFA, TransitionMonoid

DIAGONAL = "Mamba, Mamba2, GLA, mLSTM, diagonal RNN"


@dataclass(frozen=True)
class Exclusion:
    """Linear RNNs that cannot recognise the language at arbitrary length, whatever the weights."""

    architectures: str
    theorem: str
    why: str


@dataclass(frozen=True)
class Counter:
    """A word whose powers go around a cycle of states: the language counts them modulo m."""

    word: tuple[str, ...]
    m: int


def find_counters(dfa: DFA, monoid: TransitionMonoid | None) -> tuple[Counter, ...]:
    """For every m that powers of a word go around modulo, such a word, a symbol if there is one.

    monoid: that of the DFA, from some of its symbols or all; without it, of single symbols only.
    """
    found: dict[int, tuple[str, ...]] = {}
    for symbol, step in zip(dfa.alphabet, dfa.delta.T, strict=True):
        before, lasting = 0, np.arange(dfa.states)
        while before != len(lasting):
            before, lasting = len(lasting), np.unique(step[lasting])
        # now it permutes what is left
        m = _order(np.searchsorted(lasting, step[lasting]).tolist())
        found.setdefault(m, (symbol,))
    if monoid is not None:
        seen = set()
        for subgroup in monoid.maximal_subgroups:
            key = subgroup.permutations.tobytes()
            if key not in seen:
                seen.add(key)
                orders = np.array([*map(_order, subgroup.permutations.tolist())])
                for m in set(orders.tolist()) - set(found):
                    found[m] = monoid.word(int(subgroup.elements[orders == m].min()))
    return tuple(Counter(found[m], m) for m in sorted(found) if m > 1)


def _order(permutation: list[int]) -> int:
    """The least power that is the identity: the least common multiple of its cycles' lengths."""
    order, seen = 1, [False] * len(permutation)
    for point in range(len(permutation)):
        length = 0
        while not seen[point]:
            seen[point] = True
            point = permutation[point]
            length += 1
        order = math.lcm(order, max(1, length))
    return order


def exclusions_by(counters: tuple[Counter, ...]) -> list[Exclusion]:
    """From words that a language counts modulo m; see docs/diagnostics.md for the arguments."""
    if not counters:
        return []
    first = min(counters, key=lambda c: (len(c.word), c.m))
    counted = f"powers of {_word(first)} are counted modulo {first.m}"
    # up to two factors over the word are non-negative: Theorem 1; more of them only fade
    most = 2 // len(first.word)
    none = "(gated ones without allow_neg_gate)"
    delta = ["", "(Gated) DeltaNet", "(Gated) DeltaNet and DeltaProduct of two factors"][most]
    delta = f", {delta} {none}" if delta else ""
    fading = f"DeltaProduct of {most + 1} or more factors" if most else "DeltaNet and DeltaProduct"
    found = [
        Exclusion(f"eigenvalues in [0,1]: {DIAGONAL}{delta}, any depth", "Theorem 1", counted),
        Exclusion(
            f"(Gated) {fading} [0,1] {none}, any depth",
            "Proposition 1.3",
            f"{counted}, and eigenvalues are 1 or of modulus below 1 (up to ties in rounding)",
        ),
    ]
    odd = [c for c in counters if c.m & (c.m - 1)]
    if odd:
        witness = min(odd, key=lambda c: (len(c.word), c.m))
        found.append(
            Exclusion(
                f"real diagonal transitions: {DIAGONAL} [-1,1], any depth",
                "Theorem 2",
                f"powers of {_word(witness)} are counted modulo {witness.m}, no power of two",
            )
        )
    else:
        deepest = max(counters, key=lambda c: c.m)
        layers = deepest.m.bit_length() - 1
        if layers > 1:
            found.append(
                Exclusion(
                    f"real diagonal transitions [-1,1] with fewer than {layers} layers",
                    "Theorem 2",
                    f"powers of {_word(deepest)} are counted modulo {deepest.m}",
                )
            )
    letters = [c for c in counters if len(c.word) == 1 and c.m > 2]
    if letters:
        letter = min(letters, key=lambda c: c.m)
        found.append(
            Exclusion(
                "one layer of DeltaNet [-1,1], one reflection per token",
                "Theorem 2",
                f"powers of {_word(letter)} are counted modulo {letter.m}, and its eigenvalues are "
                "real",
            )
        )
    return found


def _word(counter: Counter) -> str:
    letters = all(len(symbol) == 1 for symbol in counter.word)
    return ("" if letters else " ").join(counter.word)
