"""Cascade to stages: every level as matrices."""

from __future__ import annotations

import numpy as np

from statetrack.compiler.cascade import Cascade, Level
from statetrack.compiler.stage import Stage, check_size


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
    """Double a stage so that the next one can read its old state off the new one (Theorem 4).

    A reset moves the vector to the second half and writes to the first. Any other rule moves the
    first half and clears the second: the old state then follows from the new one. State (c, p) has
    the number c (S + 1) + p, with p = S for nothing in the second half.
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
