"""Accuracy against length, and the length up to which a model can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from statetrack.models import SequenceModel
from statetrack.tasks import FiniteDataset, HeldOut, PrefixTask, Task, generator
from statetrack.tasks.base import Ints
from statetrack.training.evaluate import (
    batches,
    check_exclude,
    check_samples,
    checked,
    evaluate,
    predict,
    scaled,
)
from statetrack.training.intervals import Floats, wilson

GRID = 40  # lengths of a curve that takes each by itself
SOLVED = 0.99  # the accuracy that counts towards a horizon


@dataclass(frozen=True)
class Curve:
    """Accuracy against length."""

    samples: int  # sequences of each length
    metric: str  # what the accuracy is of: the answer at that length, or as the task is scored
    lengths: Ints
    accuracy: Floats
    low: Floats  # 95 % confidence interval of the accuracy
    high: Floats
    scaled: Floats  # the accuracy with chance at 0
    majority: Floats  # the accuracy of always saying the most frequent answer
    sequence_accuracy: Floats  # of all answers up to that length together

    @property
    def horizon(self) -> int | None:
        """The length up to which accuracy stays at 0.99 or above; None if nowhere."""
        return horizon(self.lengths, self.accuracy)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {"samples": self.samples, "metric": self.metric, "horizon": self.horizon}
        names = [f.name for f in fields(self) if f.name not in plain]
        return {**plain, **{name: getattr(self, name).tolist() for name in names}}


def curve(
    model: SequenceModel,
    task: Task | str,
    max_length: int,
    *,
    samples: int = 1024,
    split: str = "test",
    data_seed: int = 0,
    exclude: FiniteDataset | None = None,
) -> Curve:
    """Accuracy at every length up to `max_length`, or at some of them; `task` may be a name.

    Where every prefix of a sequence is a sequence as good as any, one pass gives all lengths;
    otherwise 40 lengths, evenly spaced on a logarithmic axis, are evaluated one by one. `exclude`
    is the finite set that was trained on, if there is one: no sequence and no prefix is of it.
    """
    task = checked(model, task)
    task.check_lengths(max_length, max_length)
    check_samples(samples)
    check_exclude(exclude)
    if isinstance(task, PrefixTask) and task.prefixes_are_samples:
        return _curve_of_prefixes(model, task, max_length, samples, split, data_seed, exclude)
    grid = np.geomspace(task.min_length, max_length, GRID).round()
    lengths = np.unique(grid.astype(np.int64))
    found = [
        evaluate(
            model, task, int(n), samples=samples, split=split, data_seed=data_seed, exclude=exclude
        )
        for n in lengths
    ]
    columns = ("score", "low", "high", "scaled", "majority", "sequence_accuracy")
    values = [np.array([getattr(r, c) for r in found]) for c in columns]
    return Curve(samples, task.metric, lengths, *values)


def _curve_of_prefixes(
    model: SequenceModel,
    task: PrefixTask,
    max_length: int,
    samples: int,
    split: str,
    data_seed: int,
    exclude: FiniteDataset | None,
) -> Curve:
    dense = replace(task, supervision="dense")
    held_out = None if exclude is None else HeldOut(exclude, split)
    rng = generator(data_seed, split, max_length)
    size = dense.input_size(max_length)
    right, whole = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    for part in batches(samples, size):
        drawn = np.full(part.stop - part.start, max_length)
        if held_out is None:
            batch = dense.sample(rng, drawn)
        else:
            batch = held_out.sample(dense, rng, drawn, prefixes=True)
        correct = predict(model, batch.tokens) == batch.targets
        right += correct.sum(0)
        whole += np.logical_and.accumulate(correct, axis=1).sum(0)
    lengths = np.arange(task.min_length, max_length + 1)
    at = np.array([task.input_size(int(n)) - 1 for n in lengths])
    accuracy = right[at] / samples
    return Curve(
        samples,
        "answer",
        lengths,
        accuracy,
        *wilson(right[at], samples),
        scaled=scaled(accuracy, task.chance),
        majority=task.answer_majorities(max_length)[at],
        sequence_accuracy=whole[at] / samples,
    )


def horizon(lengths: Ints, accuracy: Floats) -> int | None:
    """The greatest of the increasing `lengths` up to which `accuracy` is at least 0.99."""
    solved = np.logical_and.accumulate(np.asarray(accuracy) >= SOLVED)
    return int(np.asarray(lengths)[solved][-1]) if solved.any() else None
