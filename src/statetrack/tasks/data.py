"""Where batches come from: endless streams, and finite sets that are gone through in epochs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.tasks.base import Batch, Ints, Task, generator

ORDER = 0x6F72646572  # keeps the order's random stream apart from those of the data


class Data(Protocol):
    """A source of batches: the batch of a step is always the same."""

    def batch(self, step: int) -> Batch:
        """The batch of training step `step`, counted from 0."""


class Stream:
    """Endless fresh sequences, lengths uniform on min_length..max_length."""

    def __init__(
        self, task: Task, split: str, data_seed: int, size: int, min_length: int, max_length: int
    ) -> None:
        at_least("the batch size", size, 1)
        task.check_lengths(min_length, max_length)
        generator(data_seed, split, 0)  # refuses what it cannot key
        self.task, self.split, self.data_seed, self.size = task, split, data_seed, size
        self.min_length, self.max_length = min_length, max_length

    def batch(self, step: int) -> Batch:
        rng = generator(self.data_seed, self.split, step)
        return self.task.sample(rng, rng.integers(self.min_length, self.max_length + 1, self.size))


class FiniteDataset:
    """`size` different sequences of one length, the same for every `order_seed`.

    The order changes from epoch to epoch and with `order_seed`; a last, smaller batch of an epoch
    is left out. `exclude` keeps out the sequences of another data set.
    """

    def __init__(
        self,
        task: Task,
        split: str,
        data_seed: int,
        size: int,
        length: int,
        *,
        batch_size: int,
        order_seed: int = 0,
        exclude: FiniteDataset | None = None,
    ) -> None:
        at_least("the number of sequences", size, 1)
        at_least("the batch size", batch_size, 1)
        at_least("order_seed", order_seed, 0)
        if batch_size > size:
            raise UserError(f"the batch size {batch_size} exceeds the data set's {size} sequences")
        self.task, self.batch_size, self.order_seed = task, batch_size, order_seed
        self.length = length
        self.tokens = _distinct(task, split, data_seed, size, length, exclude)
        self.steps_per_epoch = size // batch_size
        self._epoch: tuple[int, Ints] = (-1, np.empty(0, dtype=np.int64))

    def batch(self, step: int) -> Batch:
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            rng = np.random.default_rng([self.order_seed, ORDER, epoch])
            self._epoch = (epoch, rng.permutation(len(self.tokens)))
        rows = self._epoch[1][position * self.batch_size : (position + 1) * self.batch_size]
        tokens = self.tokens[rows].astype(np.int64)
        return Batch(tokens, self.task.solve(tokens), np.full(len(rows), self.length))


def _distinct(
    task: Task, split: str, data_seed: int, size: int, length: int, exclude: FiniteDataset | None
) -> NDArray[Any]:
    """[size, T] different sequences, in the order in which they were first drawn."""
    dtype = np.int16 if len(task.vocab) < 2**15 else np.int64
    known = np.empty((0, task.input_size(length)), dtype=dtype)
    barred = known if exclude is None or exclude.length != length else exclude.tokens
    step = fruitless = 0
    while len(known) < size:
        draws = np.full(size + len(barred), length)
        drawn = task.sample(generator(data_seed, split, step), draws).tokens
        rows = np.concatenate([barred, known, drawn.astype(dtype)])
        first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        fresh = rows[first[first >= len(barred)]]
        fruitless = 0 if len(fresh) > len(known) else fruitless + 1
        if fruitless == 30:  # misses one last sequence with a chance of about exp(-30)
            raise UserError(
                f"{task.name} has too few different sequences of length {length}: "
                f"found {len(fresh)} of {size}"
            )
        known = fresh
        step += 1
    return known[:size]
