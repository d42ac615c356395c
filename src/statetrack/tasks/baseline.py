"""The majority baseline: it ignores the input and gives the most frequent answer at each position.

Answers are arrays [n, R]: row i has the answers of sequence i in order, then -1. The most frequent
ones are learned from some rows and scored on others; scored on its own sample the baseline would
look too good wherever there are many different answers.
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
STANDARD_ERROR = 0.0015  # of the score: a 95 % interval of 0.003 to either side, ...
MAX_TOKENS = 1 << 25  # ... unless that takes more tokens than these
LEARNED_ROWS = 8192  # drawn to learn the most frequent answers
CURVE_TOKENS = 1 << 23  # drawn for the baselines of all lengths at once
MAX_CELLS = 1 << 20  # that are drawn, or sorted, at once


@lru_cache(maxsize=4096)
def measured_majority(task: Task, low: int, high: int, _content: int | None) -> float:
    """Return the baseline's score on lengths low..high; see :meth:`Task.majority`."""
    most = MAX_TOKENS // task.input_size(high)
    sample = _Sample(task, low, high, only_last=task.metric == "answer")
    learned = sample.draw(min(LEARNED_ROWS, most // 2))
    frequent = most_frequent(learned)
    right, asked = _right_and_asked(task, learned, frequent)
    variance = np.var(right - right.sum() / asked.sum() * asked) / asked.mean() ** 2
    rows = min(math.ceil(variance / STANDARD_ERROR**2), most - len(learned))
    right, asked = _right_and_asked(task, sample.draw(rows), frequent)
    return float(right.sum() / asked.sum())


def _right_and_asked(task: Task, drawn: Answers, frequent: Answers) -> tuple[Answers, Answers]:
    """[n]: how many answers of each sequence the baseline gets right, and of how many."""
    right, asked = drawn == frequent, drawn >= 0
    if task.metric == "sequence":
        return (right | ~asked).all(1).astype(np.int64), np.ones(len(drawn), dtype=np.int64)
    return np.count_nonzero(right & asked, axis=1), np.count_nonzero(asked, axis=1)


@lru_cache(maxsize=64)
def measured_majorities(task: PrefixTask, length: int, _content: int | None) -> NDArray[np.float64]:
    """Return the baseline's accuracy at each position of sequences of one length."""
    sample = _Sample(replace(task, supervision="dense"), length, length)
    enough = math.ceil(0.25 / STANDARD_ERROR**2)  # the variance of a share is at most 1/4
    drawn = sample.draw(min(CURVE_TOKENS // task.input_size(length), enough))
    shares = constant_right(drawn).mean(0)
    shares.flags.writeable = False  # it is cached
    return shares


class _Sample:
    """Draws the answers of random sequences, always the same ones, in bounded memory."""

    def __init__(self, task: Task, low: int, high: int, only_last: bool = False) -> None:
        self.task, self.low, self.high = task, low, high
        self.read = last_answers if only_last else answers
        self.width = 1 if only_last else task.input_size(high)
        self.rng = np.random.default_rng([BASELINE_STREAM, low, high])

    def draw(self, rows: int) -> Answers:
        """Draw answers [rows, width] of at least 64 sequences."""
        rows, per_batch = max(rows, 64), max(1, MAX_CELLS // self.task.input_size(self.high))
        lengths = np.sort(self.rng.integers(self.low, self.high + 1, rows))  # little padding
        drawn = np.full((rows, self.width), -1, dtype=np.int32)
        for start in range(0, rows, per_batch):
            batch = self.task.sample(self.rng, lengths[start : start + per_batch])
            part = self.read(batch.targets, self.task.scored(batch.targets))
            drawn[start : start + len(part), : part.shape[1]] = part
        return drawn


def answers(targets: Answers, scored: Bools) -> Answers:
    """Move the scored ones of targets [n, T] to the start of their rows."""
    rows, columns = np.nonzero(scored)
    ranks = np.cumsum(scored, axis=1)[rows, columns] - 1
    moved = np.full((len(targets), 1 + ranks.max(initial=-1)), -1, dtype=np.int32)
    moved[rows, ranks] = targets[rows, columns]
    return moved


def last_answers(targets: Answers, scored: Bools) -> Answers:
    """Return the last scored one of targets [n, T] in each row, [n, 1]."""
    last = scored.shape[1] - 1 - np.argmax(scored[:, ::-1], axis=1)
    return np.take_along_axis(targets, last[:, None], axis=1)


def constant_right(answers: Answers) -> Bools:
    """Tell which answers [n, R] are the most frequent of their column in the other half."""
    right = np.empty(answers.shape, dtype=bool)
    for learned, scored in ((0, 1), (1, 0)):
        right[scored::2] = answers[scored::2] == most_frequent(answers[learned::2])
    return right & (answers >= 0)


def most_frequent(values: Answers) -> Answers:
    """Return the most frequent number of each column of values [n, R]; -1 does not count."""
    parts = 1 + values.size // MAX_CELLS
    return np.concatenate([*map(_most_frequent, np.array_split(values, parts, axis=1))])


def _most_frequent(values: Answers) -> Answers:
    ordered = np.sort(values, axis=0)
    place = np.arange(len(values))[:, None]
    begins = np.ones(values.shape, dtype=bool)  # of a run of equal numbers
    begins[1:] = ordered[1:] != ordered[:-1]
    run = place - np.maximum.accumulate(np.where(begins, place, 0), axis=0)
    run[ordered < 0] = -1
    return np.take_along_axis(ordered, run.argmax(0)[None], axis=0)[0]
