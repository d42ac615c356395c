"""DFA to cascade of permutation-reset automata (Krohn and Rhodes), without the monoid."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from statetrack.automata import DFA, Group
from statetrack.automata.search import TooManyStatesError, reach
from statetrack.compiler import limits
from statetrack.compiler.cascade import Cascade, Level
from statetrack.compiler.proof import Ints
from statetrack.compiler.text_to_dfa import find_dfa
from statetrack.compiler.tilings import BannedStateTiling, HolonomyTiling, Tiling, TooLargeError
from statetrack.compiler.wording import counted
from statetrack.config import one_of
from statetrack.errors import UserError

METHODS = ("auto", "holonomy", "strict", "banned")

Situation = tuple[int, int, int]  # the possible states before a symbol and after it, and the symbol


def decompose(language: str | DFA | Group, method: str = "auto") -> Cascade:
    """Decompose a DFA into a cascade whose levels only permute their states or reset them.

    Args:
        language: a DFA, of which a minimal one needs the fewest levels; or a text or group as
            `compile` takes it.
        method: "banned" has one level less than the DFA has states, with |Q|, ..., 2 states;
            "holonomy" has usually fewer, and one for every permutation automaton; "strict" is
            holonomy with the textbook's heights, all of whose levels are identities and resets if
            the language is star-free. "auto" takes the cascade with the fewest levels, then the
            fewest update rules, then the fewest swaps.

    Raises:
        UserError: the cascade exceeds a limit. For "auto": all do that have fewer levels than the
            DFA has states.
    """
    one_of("method", method, METHODS)
    return dfa_to_cascade(find_dfa(language), method)


def dfa_to_cascade(dfa: DFA, method: str) -> Cascade:
    """Decompose a DFA; see `decompose`."""
    if method == "auto":
        return _cheapest(dfa)
    try:
        return _build(dfa, method)
    except TooLargeError as problem:
        raise UserError(f"method {method!r}: {problem}; method 'auto' tries the others") from None


def _build(dfa: DFA, method: str) -> Cascade:
    tiling = _tiling(dfa, method)
    height = tiling.height(tiling.all_states)
    if height > limits.MAX_CASCADE_LEVELS:
        most = limits.MAX_CASCADE_LEVELS
        raise TooLargeError(f"the cascade has {height:,} levels; at most {most} are supported")
    return _Builder(dfa, method, tiling).cascade()


@lru_cache(maxsize=3)  # the methods of one language, which `compile` tries more than once
def _tiling(dfa: DFA, method: str) -> Tiling:
    return BannedStateTiling(dfa) if method == "banned" else HolonomyTiling(dfa, method == "strict")


def _cheapest(dfa: DFA) -> Cascade:
    most = dfa.states - 1
    best: Cascade | None = None
    problems: list[str] = []
    for method in METHODS[1:]:
        # banned is known to have so many levels: not worth the work if others have fewer
        if best is not None and len(best.levels) < (most if method == "banned" else 2):
            break
        try:
            found = _build(dfa, method)
        except TooLargeError as problem:
            problems.append(f"method {method!r}: {problem}")
            continue
        best = found if best is None else min(best, found, key=lambda cascade: cascade.cost)
    why = "; ".join(problems)
    if best is None:
        raise UserError(
            f"no method has a cascade of this DFA with {dfa.states:,} states ({why}): "
            f"{_remedy(dfa)}"
        )
    if len(best.levels) > most:
        raise UserError(
            f"no method within its limits has at most {most:,} levels, one less than the DFA has "
            f"states ({why}); method {best.method!r}, by name, has {len(best.levels):,}"
        )
    return best


def _remedy(dfa: DFA) -> str:
    """What to do about a language that is too large."""
    # the state of the reversed language is the set of states from which the DFA accepts
    accepted_from = tuple(dfa.accepting.tolist())
    symbols = dfa.delta.T.tolist()
    most = min(dfa.states // 2, limits.MAX_REVERSED_STATES)
    try:
        found = reach(accepted_from, lambda x: (tuple(x[q] for q in row) for row in symbols), most)
    except TooManyStatesError:
        return "compile smaller languages, of which it is a union or an intersection"
    states = counted(len(found.states), "state")
    return f"its words, read from the end, are a language with {states}"


class _Builder:
    """Goes down the heights of a tiling; what can occur at a level follows from the one above.

    A symbol a has a pair X, Y at every level: the states of the DFA that are possible, given the
    states of the levels above, before and after it. It starts with all states, and X.a lies in Y.
    """

    def __init__(self, dfa: DFA, method: str, tiling: Tiling) -> None:
        self.dfa, self.method, self.tiling = dfa, method, tiling
        self.total = 0  # rules so far

    def cascade(self) -> Cascade:
        tiling = self.tiling
        everything = tiling.all_states
        height = tiling.height(everything)
        situations = [(everything, everything, a) for a in range(len(self.dfa.alphabet))]
        nodes, possible = [everything], everything
        levels, tree = [], []
        for level in range(height, 0, -1):
            moves, out, following = self._level(level, situations)
            table, nodes = self._descend(level, nodes, moves.shape[1])
            start = 0
            if tiling.height(possible) == level:
                tiles = tiling.tiles(possible)
                start = next(i for i, T in enumerate(tiles) if T >> self.dfa.start & 1)
                possible = tiles[start]
            levels.append(Level(moves, out, start, tuple(situations)))
            tree.append(table)
            situations = following
        first, merged = _merge(len(self.dfa.alphabet), levels)
        return Cascade(self.dfa, self.method, first, merged, tuple(tree))

    def _level(self, level: int, situations: list[Situation]) -> tuple[Ints, Ints, list[Situation]]:
        tiling, image_of = self.tiling, self.tiling.image
        rows: list[tuple[list[int], list[int]]] = []  # moves and out; one entry stands for all
        numbers: dict[Situation, int] = {}
        states = 0
        for X, Y, a in situations:
            before = tiling.tiles(X) if tiling.height(X) == level else [X]
            after = tiling.tiles(Y) if tiling.height(Y) == level else [Y]
            image = image_of(X, a)
            if tiling.height(Y) != level:
                moves = []  # the new state is not in use: it stays as it is
            elif tiling.height(X) == level and image == Y:
                place = {T: i for i, T in enumerate(after)}
                moves = [place[image_of(T, a)] for T in before]
            else:
                target = next(i for i, T in enumerate(after) if image | T == T)
                moves = [target] * len(before)
            if level == 1:
                out = [T.bit_length() - 1 for T in after]
            else:
                ends = [after[i] for i in moves] or [Y] * len(before)
                keys = [(S, T, a) for S, T in zip(before, ends, strict=True)]
                out = [numbers.setdefault(key, len(numbers)) for key in keys]
            rows.append((moves, out))
            states = max(states, len(before), len(after))
            if self.total + len(numbers) > limits.MAX_CASCADE_RULES:
                raise TooLargeError(
                    f"the cascade has more than {limits.MAX_CASCADE_RULES:,} update rules, the "
                    f"most supported, {level - 1:,} levels before its end"
                )
        self.total += len(numbers)
        # what stands behind a row's own entries is never read, but resets must be constant and
        # permutations one to one
        identity = list(range(states))
        moves_table = [
            moves + (moves[:1] * states if _is_constant(moves) else identity)[len(moves) : states]
            for moves, _ in rows
        ]
        out_table = [(out + out[:1] * states)[:states] for _, out in rows]
        return np.array(moves_table), np.array(out_table), list(numbers)

    def _descend(self, level: int, nodes: list[int], states: int) -> tuple[Ints, list[int]]:
        """[nodes, states]: the set that each state leaves possible, or its only state."""
        tiling = self.tiling
        numbers: dict[int, int] = {}
        table = np.empty((len(nodes), states), dtype=np.int64)
        for i, X in enumerate(nodes):
            tiles = tiling.tiles(X) if tiling.height(X) == level else [X]
            if level == 1:
                row = [T.bit_length() - 1 for T in tiles]
            else:
                row = [numbers.setdefault(T, len(numbers)) for T in tiles]
            # a level that X skips may be in any state; else only its own tiles are in use
            table[i] = -1 if tiling.height(X) == level else row[0]
            table[i, : len(row)] = row
        return table, list(numbers)


def _is_constant(moves: list[int]) -> bool:
    return bool(moves) and moves.count(moves[0]) == len(moves)


def _merge(symbols: int, levels: list[Level]) -> tuple[Ints, tuple[Level, ...]]:
    """Give rules that do the same one number, from the last level to the first."""
    merged: list[Level] = []
    number: Ints | None = None
    for level in reversed(levels):
        out = level.out if number is None else number[level.out]
        both = np.concatenate([level.moves, out], axis=1)
        _, first, inverse = np.unique(both, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)  # as they were found
        number = np.argsort(order)[inverse.ravel()]
        kept = first[order]
        examples = tuple(level.examples[i] for i in kept)
        merged.append(Level(level.moves[kept], out[kept], level.start, examples))
    first = np.zeros(symbols, dtype=np.int64) if number is None else number
    return first, tuple(reversed(merged))
