"""DFA to cascade of permutation-reset automata (Krohn and Rhodes).

It works on sets of states (`tilings`) and never lists the transition monoid, which may be huge.
"""

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

# (X, Y, a): the sets of possible states before and after a symbol, as bits, and the symbol
Situation = tuple[int, int, int]


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
    """Return the cascade of least cost; raise if it has more than |Q| - 1 levels."""
    most = dfa.states - 1
    best: Cascade | None = None
    problems: list[str] = []
    for method in METHODS[1:]:
        # "banned" always has `most` levels: skip it if another method has fewer; and no method has
        # fewer than 1
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
    """Say what to do about a language that is too large."""
    # A DFA of the reversed language: having read the reverse of w, its state is the set of states
    # from which this DFA accepts w.
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
    """Build the levels of a cascade from the greatest height of a tiling down to 1.

    A situation (X, Y, a) at a level: a symbol a is read, and the levels above leave the states X of
    the DFA possible before it and Y after it. The image of X under a lies in Y. At the first level
    X and Y are all states; the situations of the next level follow from the tiles that this level
    is in before and after the symbol. Each situation is an update rule.
    """

    def __init__(self, dfa: DFA, method: str, tiling: Tiling) -> None:
        self.dfa, self.method, self.tiling = dfa, method, tiling
        self.total = 0  # update rules so far

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
        """Return the level's moves and out [rules, states], and the situations of the next level.

        A set of another height skips the level: its only tile is then the set itself.
        """
        tiling, image_of = self.tiling, self.tiling.image
        # moves by old state, and out by old state, at the last level by new state; padded below
        rows: list[tuple[list[int], list[int]]] = []
        numbers: dict[Situation, int] = {}
        states = 0
        for X, Y, a in situations:
            before = tiling.tiles(X) if tiling.height(X) == level else [X]
            after = tiling.tiles(Y) if tiling.height(Y) == level else [Y]
            image = image_of(X, a)
            if tiling.height(Y) != level:
                moves = []  # Y skips the level, which keeps its state
            elif tiling.height(X) == level and image == Y:
                place = {T: i for i, T in enumerate(after)}
                moves = [place[image_of(T, a)] for T in before]  # a permutation
            else:  # a reset
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
        # the padding is never read, but it must leave resets constant and permutations one to one
        identity = list(range(states))
        moves_table = [
            moves + (moves[:1] * states if _is_constant(moves) else identity)[len(moves) : states]
            for moves, _ in rows
        ]
        out_table = [(out + out[:1] * states)[:states] for _, out in rows]
        return np.array(moves_table), np.array(out_table), list(numbers)

    def _descend(self, level: int, nodes: list[int], states: int) -> tuple[Ints, list[int]]:
        """Return the decoding table [nodes, states] of a level and the nodes of the next level.

        Nodes are the sets that the levels above may leave possible. An entry is the number of the
        node that a state of this level leaves, at the last level the DFA's state; -1 if the state
        does not occur there.
        """
        tiling = self.tiling
        numbers: dict[int, int] = {}
        table = np.empty((len(nodes), states), dtype=np.int64)
        for i, X in enumerate(nodes):
            tiles = tiling.tiles(X) if tiling.height(X) == level else [X]
            if level == 1:
                row = [T.bit_length() - 1 for T in tiles]
            else:
                row = [numbers.setdefault(T, len(numbers)) for T in tiles]
            # if X skips the level, this may be in any state; else only the tiles of X occur
            table[i] = -1 if tiling.height(X) == level else row[0]
            table[i, : len(row)] = row
        return table, list(numbers)


def _is_constant(moves: list[int]) -> bool:
    return bool(moves) and moves.count(moves[0]) == len(moves)


def _merge(symbols: int, levels: list[Level]) -> tuple[Ints, tuple[Level, ...]]:
    """Merge equal update rules, from the last level to the first, and renumber them.

    Returns the first level's rule of each symbol, and the levels.
    """
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
