"""What a predictor gets that knows no input: it says the most frequent answer at each position.

Answers are arrays [n, R]: in each row those of one sequence, in order, and -1 after its last. What
is most frequent is learned from some rows and scored on others: on its own sample such a predictor
would look better than it is wherever answers are many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Answers = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]

CELLS_AT_ONCE = 1 << 20  # bounds what is sorted at once


def answers(targets: Answers, scored: Bools) -> Answers:
    """The scored ones of targets [n, T] in each row, moved to its start."""
    rows, columns = np.nonzero(scored)
    ranks = np.cumsum(scored, axis=1)[rows, columns] - 1
    moved = np.full((len(targets), 1 + ranks.max(initial=-1)), -1, dtype=np.int32)
    moved[rows, ranks] = targets[rows, columns]
    return moved


def last_answers(targets: Answers, scored: Bools) -> Answers:
    """The last scored one of targets [n, T] in each row, as [n, 1]."""
    last = scored.shape[1] - 1 - np.argmax(scored[:, ::-1], axis=1)
    return np.take_along_axis(targets, last[:, None], axis=1)


def constant_right(answers: Answers) -> Bools:
    """[n, R]: which answers are the most frequent one of their column in the other half."""
    right = np.empty(answers.shape, dtype=bool)
    for learned, scored in ((0, 1), (1, 0)):
        right[scored::2] = answers[scored::2] == most_frequent(answers[learned::2])
    return right & (answers >= 0)


def most_frequent(values: Answers) -> Answers:
    """The most frequent number of each column of values [n, R], -1 apart unless it is alone."""
    parts = 1 + values.size // CELLS_AT_ONCE
    return np.concatenate([*map(_most_frequent, np.array_split(values, parts, axis=1))])


def _most_frequent(values: Answers) -> Answers:
    ordered = np.sort(values, axis=0)
    place = np.arange(len(values))[:, None]
    begins = np.ones(values.shape, dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    run = place - np.maximum.accumulate(np.where(begins, place, 0), axis=0)
    run[ordered < 0] = -1
    return np.take_along_axis(ordered, run.argmax(0)[None], axis=0)[0]
