"""Accuracy against length, and the horizon."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from statetrack.models import SequenceModel
from statetrack.tasks import FiniteDataset, HeldOut, PrefixTask, Task, generator
from statetrack.tasks.base import Ints
from statetrack.training.evaluate import (
    Floats,
    batches,
    check_arguments,
    evaluate,
    predict,
    scaled,
    wilson,
)

CURVE_LENGTHS = 40  # lengths of a curve that evaluates each length separately
SOLVED = 0.99  # the least accuracy up to the horizon


@dataclass(frozen=True)
class Curve:
    """Accuracy against length."""

    samples: int  # sequences of each length
    metric: str  # what `accuracy` counts: "answer" for prefixes, else the task's metric
    lengths: Ints
    accuracy: Floats
    low: Floats  # 95 % confidence interval of the accuracy
    high: Floats
    scaled: Floats  # the accuracy, scaled so that chance is 0
    majority: Floats  # the accuracy of the majority baseline
    sequence_accuracy: Floats  # share of sequences with all answers up to the length right

    @property
    def horizon(self) -> int | None:
        """The longest length up to which the accuracy stays >= 0.99; None if there is none."""
        return horizon(self.lengths, self.accuracy)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
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
    """Measure the accuracy at every length up to `max_length`, or at 40 of them.

    If the prefixes of a sequence are distributed like shorter sequences, one pass gives all
    lengths; otherwise 40 lengths, evenly spaced on a logarithmic axis, are evaluated separately.

    Args:
        model: The model; its parameters are not changed.
        task: A task, or the name of one with its default options.
        max_length: The greatest length.
        samples: The number of sequences, of each length if these are evaluated separately.
        split: "train", "validation" or "test".
        data_seed: Seed of the sequences.
        exclude: The finite set that the model was trained on; no sequence and no prefix is in it.

    Returns:
        The accuracy at each length with its 95 % confidence interval, and the horizon.
    """
    task = check_arguments(model, task, samples, exclude).for_split(split)
    max_length = task.near_length(max_length)
    task.check_lengths(max_length, max_length)
    if isinstance(task, PrefixTask) and task.prefixes_are_samples:
        return _curve_of_prefixes(model, task, max_length, samples, split, data_seed, exclude)
    grid = np.geomspace(task.min_length, max_length, CURVE_LENGTHS).round()
    lengths = np.unique([task.near_length(int(n)) for n in grid])
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
    draw = dense.sample
    if exclude is not None:
        draw = partial(HeldOut(exclude, split).sample, dense, prefixes=True)
    rng = generator(data_seed, split, max_length)
    size = dense.input_size(max_length)
    right, whole = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    for rows in batches(samples, size):
        batch = draw(rng, np.full(rows.stop - rows.start, max_length))
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
    """Return the greatest of the increasing `lengths` up to which `accuracy` is >= 0.99."""
    solved = np.logical_and.accumulate(np.asarray(accuracy) >= SOLVED)
    return int(np.asarray(lengths)[solved][-1]) if solved.any() else None
