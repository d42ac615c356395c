"""Cascade to stages: every level as matrices of zeros and ones, the same for every target op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statetrack.compiler import limits
from statetrack.compiler.cascade import Cascade, Level
from statetrack.compiler.proof import Bools, Ints
from statetrack.compiler.wording import counted
from statetrack.errors import UserError


@dataclass(frozen=True, eq=False)
class Stage:
    """The map of one layer, h -> A(rule) h + B(rule), on codewords h [n, V] of states.

    A takes each axis to another one or to 0, and B writes a 1 to at most one axis: matrices of norm
    at most 1, exact in any floating-point format. `out` is the update rule of the next stage, by
    this stage's old state; in the last stage it is the state of the DFA, by the new one.
    """

    moves: Ints  # [rules, S]: the new state after each old one
    out: Ints  # [rules, S]
    start: int
    codewords: Ints  # [S, n, V]: the matrix h of each state; A acts on its V columns alike
    axis_map: Ints  # [rules, n]: the axis to which A takes each axis, or -1
    writes: Ints  # [rules]: the axis to which B writes 1, or -1

    def forgets(self) -> Bools:
        """[rules]: for which A = 0."""
        return np.asarray((self.axis_map < 0).all(axis=1))

    def is_diagonal(self) -> bool:
        """Whether every rule keeps the whole state or forgets it."""
        kept = (self.axis_map == np.arange(self.axis_map.shape[1])).all(axis=1)
        return bool((kept | self.forgets()).all())

    def permutes_or_resets(self) -> bool:
        """Whether every rule permutes the axes, or forgets everything and writes."""
        partial = (self.axis_map < 0).any(axis=1)
        return bool((partial == (self.forgets() & (self.writes >= 0))).all())

    def __str__(self) -> str:
        rules, n = self.axis_map.shape
        kept = int((self.axis_map == np.arange(n)).all(axis=1).sum())
        forget = int(self.forgets().sum())
        return (
            f"Stage: {counted(len(self.codewords), 'state')} as vectors [{n}, "
            f"{self.codewords.shape[2]}], starts in state {self.start}, "
            f"{counted(rules, 'update rule')}: {kept} with A = I, {forget} with A = 0, "
            f"{rules - kept - forget} that move axes; {int((self.writes >= 0).sum())} write."
        )


def cascade_to_stages(cascade: Cascade) -> list[Stage]:
    """Turn every level of a cascade into a stage."""
    return [level_to_stage(level) for level in cascade.levels]


def level_to_stage(level: Level) -> Stage:
    """Give every state an axis: a permutation moves the axes, a reset forgets all and writes."""
    check_size(level.rules, level.states, level.states)
    reset = level.is_reset()
    return Stage(
        moves=level.moves,
        out=level.out,
        start=level.start,
        codewords=np.eye(level.states, dtype=np.int64)[:, :, None],
        axis_map=np.where(reset[:, None], -1, level.moves),
        writes=np.where(reset, level.moves[:, 0], -1),
    )


def with_old_state(stage: Stage) -> Stage:
    """Double the axes of a stage, so that its new state also tells its old one (Theorem 4).

    A reset moves the first half of h to the second and writes to the first. Any other rule permutes
    the first half and clears the second; as a permutation can be inverted, the old state follows
    from the new one. The state with c in the first half and p in the second has the number
    c (S + 1) + p, where p = S if the second half is 0.
    """
    rules, S = stage.moves.shape
    n = stage.codewords.shape[1]
    check_size(rules, 2 * n, S * (S + 1))
    reset = stage.forgets() & (stage.writes >= 0)
    axes, nothing = np.arange(n), np.full((rules, n), -1)
    axis_map = np.concatenate([np.where(reset[:, None], n + axes, stage.axis_map), nothing], axis=1)
    current, previous = np.divmod(np.arange(S * (S + 1)), S + 1)
    moves = stage.moves[:, current] * (S + 1) + np.where(reset[:, None], current, S)
    vectors = np.concatenate([stage.codewords, np.zeros_like(stage.codewords[:1])])
    codewords = np.concatenate([vectors[current], vectors[previous]], axis=1)
    start = stage.start * (S + 1) + S
    return Stage(moves, stage.out, start, codewords, axis_map, stage.writes)


def check_size(rules: int, axes: int, states: int) -> None:
    """Raise a UserError for a stage whose tables would not fit, before they take the memory."""
    cells = max(rules * axes * axes, rules * states, states * axes)
    if cells > limits.MAX_TABLE_CELLS:
        raise UserError(
            f"a layer with {rules:,} update rules, {axes:,} axes and {states:,} states has tables "
            f"of {cells:,} numbers; at most {limits.MAX_TABLE_CELLS:,} are supported: a DFA with "
            "fewer symbols, such as a group's generators, or states needs fewer"
        )
