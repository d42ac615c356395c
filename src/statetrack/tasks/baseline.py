"""The majority baseline: it ignores the input and gives the most frequent answer at each position.

Answers are arrays [n, R]: row i has the answers of sequence i in order, padded with -1 at the right
end. The most frequent answer of each column is learned from some sequences and scored on others.
Scored on the sequences it was learned from, the baseline would look too good where there are many
different answers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from statetrack.tasks.base import PrefixTask, Task

Answers = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]

BASELINE_STREAM = 0x6D616A6F72  # separates the baseline's random stream from those of the data
STANDARD_ERROR = 0.0015  # that the score should have: a 95 % interval of +-0.003
MAX_TOKENS = 1 << 25  # drawn for one score at most, even if its standard error is then larger
LEARNED_ROWS = 8192  # sequences from which the most frequent answers are learned
SHORT = 64  # a length at which most baselines have no sequence right at every position
CURVE_TOKENS = 1 << 23  # drawn for `measured_majorities` at most
MAX_CELLS = 1 << 20  # array entries that are drawn, or sorted, at once


@lru_cache(maxsize=4096)
def measured_majority(task: Task, low: int, high: int, _content: int | None) -> float:
    """Return the baseline's score on lengths low..high; see :meth:`Task.majority`.

    `_content` is `Task.content`, a key of the cache: a task read from a file may change with it.
    """
    if (
        task.metric == "sequence"
        and low > SHORT
        and getattr(task, "prefixes_are_samples", False)
        and measured_majority(task, SHORT, SHORT, _content) == 0.0
    ):
        return 0.0  # with more positions to be right at, the share of right sequences only falls
    most = MAX_TOKENS // task.input_size(high)
    sample = _Sample(task, low, high, only_last=task.metric == "answer")
    learned = sample.draw(min(LEARNED_ROWS, most // 2))
    frequent = most_frequent(learned)
    right, asked = _right_and_asked(task, learned, frequent)
    # of the ratio right.sum() / asked.sum(), times the number of rows (delta method)
    variance = np.var(right - right.sum() / asked.sum() * asked) / asked.mean() ** 2
    rows = min(math.ceil(variance / STANDARD_ERROR**2), most - len(learned))
    right, asked = _right_and_asked(task, sample.draw(rows), frequent)
    return float(right.sum() / asked.sum())


def _right_and_asked(task: Task, drawn: Answers, frequent: Answers) -> tuple[Answers, Answers]:
    """Return how many answers of each sequence [n] the baseline gets right, and how many it has.

    With the metric "sequence" a sequence counts as one answer, which is right if all of its are.
    """
    right, asked = drawn == frequent, drawn >= 0
    if task.metric == "sequence":
        return (right | ~asked).all(1).astype(np.int64), np.ones(len(drawn), dtype=np.int64)
    return np.count_nonzero(right & asked, axis=1), np.count_nonzero(asked, axis=1)


@lru_cache(maxsize=64)
def measured_majorities(task: PrefixTask, length: int, _content: int | None) -> NDArray[np.float64]:
    """Return the baseline's accuracy at each position with a target, of sequences of one length.

    `_content` is a key of the cache, as in `measured_majority`.
    """
    sample = _Sample(replace(task, supervision="dense"), length, length, all_targets=True)
    enough = math.ceil(0.25 / STANDARD_ERROR**2)  # the variance of a share is at most 1/4
    drawn = sample.draw(min(CURVE_TOKENS // task.input_size(length), enough))
    shares = constant_right(drawn).mean(0)
    shares.flags.writeable = False  # it is cached
    return shares


class _Sample:
    """Draw the answers of random sequences, from a fixed seed and in batches of bounded size."""

    def __init__(
        self, task: Task, low: int, high: int, *, only_last: bool = False, all_targets: bool = False
    ) -> None:
        self.task, self.low, self.high = task, low, high
        self.all_targets = all_targets  # those that are not scored included
        self.read = last_answers if only_last else answers
        self.width = 1 if only_last else task.input_size(high)
        self.rng = np.random.default_rng([BASELINE_STREAM, low, high])

    def draw(self, rows: int) -> Answers:
        """Draw the answers of `rows` sequences, but of at least 64: [max(rows, 64), width]."""
        rows, per_batch = max(rows, 64), max(1, MAX_CELLS // self.task.input_size(self.high))
        # sorted, so that the sequences of a batch need little padding
        lengths = np.sort(self.task.sample_lengths(self.rng, self.low, self.high, rows))
        drawn = np.full((rows, self.width), -1, dtype=np.int32)
        for start in range(0, rows, per_batch):
            batch = self.task.sample(self.rng, lengths[start : start + per_batch])
            asked = batch.targets >= 0 if self.all_targets else self.task.scored(batch.targets)
            part = self.read(batch.targets, asked)
            drawn[start : start + len(part), : part.shape[1]] = part
        return drawn


def answers(targets: Answers, scored: Bools) -> Answers:
    """Return the scored ones of targets [n, T], moved to the left of their rows; then -1."""
    rows, columns = np.nonzero(scored)
    ranks = np.cumsum(scored, axis=1)[rows, columns] - 1
    moved = np.full((len(targets), 1 + ranks.max(initial=-1)), -1, dtype=np.int32)
    moved[rows, ranks] = targets[rows, columns]
    return moved


def last_answers(targets: Answers, scored: Bools) -> Answers:
    """Return the last scored target of each row of [n, T], as [n, 1]; every row must have one."""
    last = scored.shape[1] - 1 - np.argmax(scored[:, ::-1], axis=1)
    return np.take_along_axis(targets, last[:, None], axis=1)


def constant_right(answers: Answers) -> Bools:
    """Tell which answers [n, R] the baseline gets right, by two-fold cross-validation.

    Even rows are compared with the most frequent answers of the odd rows, and odd with even.
    """
    right = np.empty(answers.shape, dtype=bool)
    for learned, scored in ((0, 1), (1, 0)):
        right[scored::2] = answers[scored::2] == most_frequent(answers[learned::2])
    return right & (answers >= 0)


def most_frequent(values: Answers) -> Answers:
    """Return the most frequent number of each column of values [n, R], not counting -1; [R]."""
    parts = 1 + values.size // MAX_CELLS
    return np.concatenate([*map(_most_frequent, np.array_split(values, parts, axis=1))])


def _most_frequent(values: Answers) -> Answers:
    ordered = np.sort(values, axis=0)
    row = np.arange(len(values))[:, None]
    begins = np.ones(values.shape, dtype=bool)  # whether a run of equal numbers begins here
    begins[1:] = ordered[1:] != ordered[:-1]
    # the index of each number within its run: largest at the end of the longest run
    within = row - np.maximum.accumulate(np.where(begins, row, 0), axis=0)
    within[ordered < 0] = -1
    return np.take_along_axis(ordered, within.argmax(0)[None], axis=0)[0]
