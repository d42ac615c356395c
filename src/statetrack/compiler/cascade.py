"""Cascades of permutation-reset automata: the form between a DFA and a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from statetrack.automata import DFA
from statetrack.compiler.factor import swaps
from statetrack.compiler.frames import members
from statetrack.compiler.induction import MAX_STATES, Bools, Ints, Proof, by_levels, induct
from statetrack.compiler.wording import abridge, counted, listed

SHOWN = 8  # contexts of a level that print


@dataclass(frozen=True, eq=False)
class Level:
    """One automaton of a cascade: its states are coordinates, its symbols are contexts.

    What a level tells the next one depends on its old coordinate; the last level tells the state
    of the DFA, and that depends on its new coordinate.
    """

    moves: Ints  # [contexts, width]: the new coordinate after each old one
    out: Ints  # [contexts, width]: the next level's context by the old coordinate, or the state
    start: int
    # an example of each context: the states that levels above leave open before and after a symbol
    examples: tuple[tuple[int, int, int], ...]

    @property
    def width(self) -> int:
        """The number of coordinates."""
        return self.moves.shape[1]

    @property
    def contexts(self) -> int:
        """The number of contexts."""
        return len(self.moves)

    def is_identity(self) -> Bools:
        """[contexts]: which leave every coordinate alone."""
        return (self.moves == np.arange(self.width)).all(axis=1)

    def is_reset(self) -> Bools:
        """[contexts]: which take every coordinate to one."""
        return (self.moves == self.moves[:, :1]).all(axis=1) & ~self.is_identity()

    @property
    def permutations(self) -> int:
        """How many contexts are neither."""
        return int((~self.is_identity() & ~self.is_reset()).sum())

    @property
    def householders(self) -> int:
        """The most swaps that a context needs."""
        rows = self.moves[~self.is_identity() & ~self.is_reset()]
        return max((len(swaps(row)) for row in rows.tolist()), default=0)

    def kinds(self) -> list[str]:
        """How many contexts do what, in words."""
        numbers = {
            "identity": int(self.is_identity().sum()),
            "permutation": self.permutations,
            "reset": int(self.is_reset().sum()),
        }
        return [counted(number, kind) for kind, number in numbers.items() if number]

    def action(self, context: int) -> str:
        """What a context does, in words."""
        row = self.moves[context]
        if self.is_identity()[context]:
            return "identity"
        if self.is_reset()[context]:
            return f"reset to {row[0]}"
        return "permute " + " ".join(listed([*map(str, row)], "coordinates"))


@dataclass(frozen=True, eq=False)
class Cascade:
    """Permutation-reset automata in a row that do together what a DFA does.

    The state is one coordinate per level. A symbol is a context of the first level; the context
    of any other follows from that of the one before and from its old coordinate.
    """

    dfa: DFA
    method: str
    first: Ints  # [symbols]: the first level's contexts
    levels: tuple[Level, ...]
    # [nodes, width] per level: the next level's node, or the DFA's state; -1 for coordinates that
    # are not in use
    tree: tuple[Ints, ...]

    @property
    def start(self) -> Ints:
        """[levels]: the coordinates before the first symbol."""
        return np.array([level.start for level in self.levels], dtype=np.int64)

    def step(self, coordinates: Ints, symbols: Ints) -> Ints:
        """[N, levels], [N] -> [N, levels]: the coordinates after one symbol each."""
        contexts = self.first[symbols]
        new = np.empty_like(coordinates)
        for i, level in enumerate(self.levels):
            old = coordinates[:, i]
            new[:, i] = level.moves[contexts, old]
            contexts = level.out[contexts, old]
        return new

    def decode(self, coordinates: Ints) -> Ints:
        """[N, levels] -> [N]: the states of the DFA that coordinates stand for."""
        nodes = np.zeros(len(coordinates), dtype=np.int64)
        for table, column in zip(self.tree, coordinates.T, strict=True):
            nodes = table[nodes, column]
        return nodes

    def verify(self, max_states: int = MAX_STATES) -> Proof:
        """Whether decode(step(c, a)) is what the DFA does, for all that can be reached.

        By induction down the levels; if that fails, a word that refutes it is looked for among
        the first `max_states` cascade states, breadth first.
        """
        claim = f"the cascade does what the DFA with {counted(self.dfa.states, 'state')} does"
        tables = [(x.moves, x.out, np.ones(x.moves.shape, dtype=np.bool_)) for x in self.levels]
        steps = by_levels(self.dfa, self.first, self.start.tolist(), tables, self.tree)
        if steps is not None:
            return Proof(claim, f"all {counted(steps, 'step')} of its levels")
        state = int(self.decode(self.start[None])[0])
        if state != self.dfa.start:
            return Proof(claim, "the start", (), f"state {state} instead of {self.dfa.start}")

        def step(coordinates: Ints, symbols: Ints) -> tuple[Ints, Ints, Bools]:
            new = self.step(coordinates, symbols)
            return new, self.decode(new), np.zeros(len(new), dtype=np.bool_)

        return induct(self.dfa, claim, self.start, step, lambda *_: "", max_states)

    @property
    def cost(self) -> tuple[int, int, int]:
        """Levels, contexts and swaps: what `decompose` keeps small, in this order."""
        contexts = sum(level.contexts for level in self.levels)
        return len(self.levels), contexts, sum(level.householders for level in self.levels)

    def stats(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {
            "method": self.method,
            "states": self.dfa.states,
            "symbols": len(self.dfa.alphabet),
            "levels": [
                {
                    "width": level.width,
                    "contexts": level.contexts,
                    "identities": int(level.is_identity().sum()),
                    "permutations": level.permutations,
                    "resets": int(level.is_reset().sum()),
                    "householders": level.householders,
                }
                for level in self.levels
            ],
        }

    def __str__(self) -> str:
        count, states = counted(len(self.levels), "level"), counted(self.dfa.states, "state")
        title = (
            f"cascade of {count} for a DFA with {states} and "
            f"{counted(len(self.dfa.alphabet), 'symbol')}, by method {self.method}"
        )
        levels = [self._describe(number) for number in range(len(self.levels))]
        return "\n".join([title, *abridge(levels, "level")])

    def _describe(self, number: int) -> str:
        level = self.levels[number]
        lines = [
            f"level {number + 1}: {counted(level.width, 'coordinate')} from {level.start}, "
            f"{counted(level.contexts, 'context')}: {', '.join(level.kinds())}"
        ]
        for context, (old, new, symbol) in enumerate(level.examples[:SHOWN]):
            sets = f"{_set(old)} -> {_set(new)}"
            lines.append(f"    {sets} on {self.dfa.alphabet[symbol]}: {level.action(context)}")
        if level.contexts > SHOWN:
            lines.append(f"    and {level.contexts - SHOWN:,} more")
        return "\n".join(lines)


def _set(states: int) -> str:
    return "{" + ",".join(listed([*map(str, members(states))], "states")) + "}"
