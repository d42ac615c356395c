"""Cascades of permutation-reset automata: the form between a DFA and a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from statetrack.automata import DFA
from statetrack.compiler.factor import swaps
from statetrack.compiler.proof import Bools, Ints
from statetrack.compiler.tilings import members
from statetrack.compiler.wording import abridge, counted, listed

SHOWN = 8  # update rules of a level that print


@dataclass(frozen=True, eq=False)
class Level:
    """One automaton of a cascade: an update rule, chosen from outside, moves its state.

    The number that a level passes to the next one depends on its old state. The last level gives
    the state of the DFA, which depends on its new state.
    """

    moves: Ints  # [rules, states]: the new state after each old one
    out: Ints  # [rules, states]: the next level's rule by the old state, or the DFA's state
    start: int
    # an example of each rule: the sets of possible states before and after a symbol, the symbol
    examples: tuple[tuple[int, int, int], ...]

    @property
    def states(self) -> int:
        """The number of states."""
        return self.moves.shape[1]

    @property
    def rules(self) -> int:
        """The number of update rules."""
        return len(self.moves)

    def is_identity(self) -> Bools:
        """[rules]: which keep every state."""
        return (self.moves == np.arange(self.states)).all(axis=1)

    def is_reset(self) -> Bools:
        """[rules]: which take every state to the same one."""
        return (self.moves == self.moves[:, :1]).all(axis=1) & ~self.is_identity()

    @property
    def permutations(self) -> int:
        """The number of rules that are neither."""
        return int((~self.is_identity() & ~self.is_reset()).sum())

    @property
    def householders(self) -> int:
        """The most swaps that a rule needs."""
        rows = self.moves[~self.is_identity() & ~self.is_reset()]
        return max((len(swaps(row)) for row in rows.tolist()), default=0)

    def kinds(self) -> list[str]:
        """Say how many rules there are of each kind."""
        numbers = {
            "identity": int(self.is_identity().sum()),
            "permutation": self.permutations,
            "reset": int(self.is_reset().sum()),
        }
        return [counted(number, kind) for kind, number in numbers.items() if number]

    def action(self, rule: int) -> str:
        """Say what a rule does."""
        row = self.moves[rule]
        if self.is_identity()[rule]:
            return "identity"
        if self.is_reset()[rule]:
            return f"reset to {row[0]}"
        return "permute " + " ".join(listed([*map(str, row)], "states"))

    def __str__(self) -> str:
        return (
            f"{counted(self.states, 'state')}, starts in state {self.start}, "
            f"{counted(self.rules, 'update rule')}"
        )


@dataclass(frozen=True, eq=False)
class Cascade:
    """Permutation-reset automata in a row that together compute a DFA.

    A symbol chooses the first level's update rule; the rule of every other level follows from the
    rule and the old state of the level before.
    """

    dfa: DFA
    method: str
    first: Ints  # [symbols]: the first level's rules
    levels: tuple[Level, ...]
    # [nodes, states] per level: the next level's node, or the DFA's state; -1 for states of the
    # level that are not in use
    tree: tuple[Ints, ...]

    @property
    def start(self) -> Ints:
        """[levels]: the states before the first symbol."""
        return np.array([level.start for level in self.levels], dtype=np.int64)

    def step(self, states: Ints, symbols: Ints) -> Ints:
        """[N, levels], [N] -> [N, levels]: the states of the levels after one symbol each."""
        rules = self.first[symbols]
        new = np.empty_like(states)
        for i, level in enumerate(self.levels):
            old = states[:, i]
            new[:, i] = level.moves[rules, old]
            rules = level.out[rules, old]
        return new

    def decode(self, states: Ints) -> Ints:
        """[N, levels] -> [N]: the states of the DFA that the levels' states stand for."""
        nodes = np.zeros(len(states), dtype=np.int64)
        for table, column in zip(self.tree, states.T, strict=True):
            nodes = table[nodes, column]
        return nodes

    @property
    def cost(self) -> tuple[int, int, int]:
        """Levels, rules and swaps: what `decompose` keeps small, in this order."""
        rules = sum(level.rules for level in self.levels)
        return len(self.levels), rules, sum(level.householders for level in self.levels)

    def stats(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        return {
            "method": self.method,
            "states": self.dfa.states,
            "symbols": len(self.dfa.alphabet),
            "levels": [
                {
                    "states": level.states,
                    "rules": level.rules,
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
            f"Cascade of {count} for a DFA with {states} and "
            f"{counted(len(self.dfa.alphabet), 'symbol')}, by method {self.method}."
        )
        levels = [self._describe(number) for number in range(len(self.levels))]
        return "\n".join([title, *abridge(levels, "level")])

    def _describe(self, number: int) -> str:
        level = self.levels[number]
        lines = [f"Level {number + 1}: {level} ({', '.join(level.kinds())})."]
        for rule, (old, new, symbol) in enumerate(level.examples[:SHOWN]):
            sets = f"{_set(old)} -> {_set(new)}"
            lines.append(f"    {sets} on {self.dfa.alphabet[symbol]}: {level.action(rule)}")
        if level.rules > SHOWN:
            lines.append(f"    and {level.rules - SHOWN:,} more")
        return "\n".join(lines)


def _set(states: int) -> str:
    return "{" + ",".join(listed([*map(str, members(states))], "states")) + "}"
