"""DFAs into cascades of permutation-reset automata (Krohn and Rhodes), without their monoids."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from statetrack.automata import DFA, Group
from statetrack.compiler.cascade import Cascade, Level
from statetrack.compiler.frames import BannedState, Frame, Holonomy, TooLargeError
from statetrack.compiler.induction import Ints
from statetrack.compiler.languages import find_dfa
from statetrack.compiler.wording import counted
from statetrack.config import one_of
from statetrack.errors import UserError

METHODS = ("auto", "holonomy", "strict", "banned")
MAX_CONTEXTS = 200_000  # a few seconds' work
MAX_LEVELS = 256  # of a cascade: each is a layer
MAX_BACKWARDS = 1_000  # states that are worth while to name

Context = tuple[int, int, int]  # a set of states before a symbol, one after it, and the symbol


def decompose(language: str | DFA | Group, method: str = "auto") -> Cascade:
    """A cascade that does what a DFA does; each level permutes its coordinates or resets them.

    Args:
        language: any DFA, a minimal one needs the fewest levels; or what else `compile` takes.
        method: "banned" has one level less than the DFA has states, of widths |Q|, ..., 2;
            "holonomy" has usually fewer, and one for every permutation automaton; "strict" is
            holonomy with the textbook's heights, all of whose levels are identities and resets if
            the language is star-free. "auto" takes what has the fewest levels, then the fewest
            contexts, then the fewest swaps, and never has more levels than "banned": where only a
            longer one is within the limits, that is an error.
    """
    one_of("method", method, METHODS)
    dfa = find_dfa(language)
    if method == "auto":
        return _cheapest(dfa)
    try:
        return _build(dfa, method)
    except TooLargeError as problem:
        raise UserError(f"method {method!r}: {problem}; method 'auto' tries the others") from None


def _build(dfa: DFA, method: str) -> Cascade:
    frame = _frame(dfa, method)
    height = frame.level(frame.everything)
    if height > MAX_LEVELS:
        raise TooLargeError(
            f"the cascade has {height:,} levels; at most {MAX_LEVELS} are supported"
        )
    return _Builder(dfa, method, frame).cascade()


@lru_cache(maxsize=3)  # the methods of one language, which `compile` tries more than once
def _frame(dfa: DFA, method: str) -> Frame:
    return BannedState(dfa) if method == "banned" else Holonomy(dfa, strict=method == "strict")


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
    said = "; ".join(problems)
    if best is None:
        raise UserError(
            f"no method has a cascade of this DFA with {dfa.states:,} states ({said}): "
            f"{_instead(dfa)}"
        )
    if len(best.levels) > most:
        raise UserError(
            f"no method within its limits has at most {most:,} levels, one less than the DFA has "
            f"states ({said}); method {best.method!r}, by name, has {len(best.levels):,}"
        )
    return best


def _instead(dfa: DFA) -> str:
    """What to do about a language that is too large."""
    backwards = _states_backwards(dfa, min(dfa.states // 2, MAX_BACKWARDS))
    if backwards:
        return f"its words, read from the end, are a language with {counted(backwards, 'state')}"
    return "compile smaller languages, of which it is a union or an intersection"


def _states_backwards(dfa: DFA, most: int) -> int | None:
    """The states of the minimal DFA of the reversed words, if they are at most so many.

    What has been read of one, from its end, is known by the states that it is accepted from.
    """
    found = [dfa.accepting]
    seen = {dfa.accepting.tobytes()}
    for accepted_from in found:  # grows while it is read
        for targets in dfa.delta.T:
            longer = accepted_from[targets]
            if longer.tobytes() not in seen:
                seen.add(longer.tobytes())
                found.append(longer)
        if len(found) > most:
            return None
    return len(found)


class _Builder:
    """Goes down the levels of a frame; what can occur at one follows from the one above.

    A symbol's way down is a pair X, Y: the states that the coordinates so far leave open, before
    and after the symbol a. It starts with all states, and always X.a lies within Y.
    """

    def __init__(self, dfa: DFA, method: str, frame: Frame) -> None:
        self.dfa, self.method, self.frame = dfa, method, frame
        self.total = 0  # contexts so far

    def cascade(self) -> Cascade:
        frame = self.frame
        everything = frame.everything
        height = frame.level(everything)
        contexts = [(everything, everything, a) for a in range(len(self.dfa.alphabet))]
        nodes, open_states = [everything], everything
        levels, tree = [], []
        for level in range(height, 0, -1):
            moves, out, following = self._level(level, contexts)
            table, nodes = self._descend(level, nodes, moves.shape[1])
            start = 0
            if frame.level(open_states) == level:
                tiles = frame.tiles(open_states)
                start = next(i for i, T in enumerate(tiles) if T >> self.dfa.start & 1)
                open_states = tiles[start]
            levels.append(Level(moves, out, start, tuple(contexts)))
            tree.append(table)
            contexts = following
        first, merged = _merge(len(self.dfa.alphabet), levels)
        return Cascade(self.dfa, self.method, first, merged, tuple(tree))

    def _level(self, level: int, contexts: list[Context]) -> tuple[Ints, Ints, list[Context]]:
        frame, images = self.frame, self.frame.images
        rows: list[tuple[list[int], list[int]]] = []  # moves and out; one entry stands for all
        numbers: dict[Context, int] = {}
        width = 0
        for X, Y, a in contexts:
            before = frame.tiles(X) if frame.level(X) == level else [X]
            after = frame.tiles(Y) if frame.level(Y) == level else [Y]
            image = images(X, a)
            if frame.level(Y) != level:
                moves = []  # the new coordinate is not in use: it stays as it is
            elif frame.level(X) == level and image == Y:
                place = {T: i for i, T in enumerate(after)}
                moves = [place[images(T, a)] for T in before]
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
            width = max(width, len(before), len(after))
            if self.total + len(numbers) > MAX_CONTEXTS:
                raise TooLargeError(
                    f"the cascade has more than {MAX_CONTEXTS:,} contexts, the most supported, "
                    f"{level - 1:,} levels before its end"
                )
        self.total += len(numbers)
        # what stands behind a row's own entries is never read, but resets must be constant and
        # permutations one to one
        identity = list(range(width))
        moves_table = [
            moves + (moves[:1] * width if _is_constant(moves) else identity)[len(moves) : width]
            for moves, _ in rows
        ]
        out_table = [(out + out[:1] * width)[:width] for _, out in rows]
        return np.array(moves_table), np.array(out_table), list(numbers)

    def _descend(self, level: int, nodes: list[int], width: int) -> tuple[Ints, list[int]]:
        """[nodes, width]: the set that each coordinate leaves open, or its only state."""
        frame = self.frame
        numbers: dict[int, int] = {}
        table = np.empty((len(nodes), width), dtype=np.int64)
        for i, X in enumerate(nodes):
            tiles = frame.tiles(X) if frame.level(X) == level else [X]
            if level == 1:
                row = [T.bit_length() - 1 for T in tiles]
            else:
                row = [numbers.setdefault(T, len(numbers)) for T in tiles]
            # a coordinate that is not in use may be anything, one of a level must be one of its own
            table[i] = -1 if frame.level(X) == level else row[0]
            table[i, : len(row)] = row
        return table, list(numbers)


def _is_constant(moves: list[int]) -> bool:
    return bool(moves) and moves.count(moves[0]) == len(moves)


def _merge(symbols: int, levels: list[Level]) -> tuple[Ints, tuple[Level, ...]]:
    """Give contexts that do the same one number, from the last level to the first."""
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
