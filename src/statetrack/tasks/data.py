"""Sources of batches: endless streams, and finite sets that are repeated in epochs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from statetrack.config import at_least, one_of
from statetrack.errors import UserError
from statetrack.tasks.base import Batch, Ints, Task, generator

ORDER = 0x6F72646572  # separates the random stream of the order from those of the data
KEY = 0x6B6579  # the same for the weights of `sequence_keys`
HALVES = {"validation": 0, "test": 1}  # the first bit of the keys of a split's sequences

Keys = NDArray[np.uint64]


class Data(Protocol):
    """A source of batches. The batch of a step is always the same."""

    def batch(self, step: int) -> Batch:
        """Return the batch of training step `step`, counted from 0."""


class Stream:
    """Endless new sequences, with lengths uniform on min_length..max_length."""

    def __init__(
        self, task: Task, split: str, data_seed: int, size: int, min_length: int, max_length: int
    ) -> None:
        at_least("the batch size", size, 1)
        generator(data_seed, split, 0)  # checks the seed and the split
        task = task.for_split(split)
        task.check_lengths(min_length, max_length)
        self.task, self.split, self.data_seed, self.size = task, split, data_seed, size
        self.min_length, self.max_length = min_length, max_length

    def batch(self, step: int) -> Batch:
        rng = generator(self.data_seed, self.split, step)
        lengths = self.task.sample_lengths(rng, self.min_length, self.max_length, self.size)
        return self.task.sample(rng, lengths)


class FiniteDataset:
    """`size` distinct sequences of one length, in a new order in every epoch.

    `order_seed` changes the order, not the sequences. A last, smaller batch of an epoch is dropped.
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
    ) -> None:
        at_least("the number of sequences", size, 1)
        at_least("the batch size", batch_size, 1)
        at_least("order_seed", order_seed, 0)
        if batch_size > size:
            raise UserError(f"the batch size {batch_size} exceeds the data set's {size} sequences")
        task = task.for_split(split)
        self.task, self.batch_size, self.order_seed = task, batch_size, order_seed
        self.length = length
        self.tokens = _distinct(task, split, data_seed, size, length)
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


class HeldOut:
    """Draws sequences for an evaluation after training on a finite set, without those trained on.

    The other sequences of that length belong to validation or to test by the first bit of their
    key, so that no sequence is in two splits. Other lengths are drawn without restriction.
    """

    def __init__(self, train: FiniteDataset, split: str) -> None:
        one_of("split", split, HALVES)
        self.split, self.length = split, train.length
        self.size = train.tokens.shape[1]
        self.trained = np.sort(sequence_keys(train.tokens, train.task.pad))

    def sample(
        self, task: Task, rng: np.random.Generator, lengths: Ints, *, prefixes: bool = False
    ) -> Batch:
        """Draw as `task.sample`; with `prefixes`, longer sequences are held out by their prefix."""
        batch = task.sample(rng, lengths)
        asked = batch.lengths >= self.length if prefixes else batch.lengths == self.length
        rejected = np.flatnonzero(asked)
        rejected = rejected[~self._allowed(task, batch.tokens[rejected])]
        draws = max(len(rejected), min(1024, 1 + (1 << 20) // batch.tokens.shape[1]))
        without_success = 0
        while len(rejected):
            # all rejected rows have one length, so any new row can replace any of them
            again = task.sample(rng, np.full(draws, batch.lengths[rejected[0]])).tokens
            again = again[self._allowed(task, again)][: len(rejected)]
            batch.tokens[rejected[: len(again)], : again.shape[1]] = again
            rejected = rejected[len(again) :]
            without_success = 0 if len(again) else without_success + draws
            if without_success > 30 * (len(self.trained) + 1):
                raise UserError(
                    f"{task.name} has no sequence of length {self.length} left for {self.split}: "
                    f"{len(self.trained)} of them are trained on"
                )
        return batch._replace(targets=task.solve(batch.tokens))

    def _allowed(self, task: Task, tokens: Ints) -> NDArray[np.bool_]:
        keys = sequence_keys(tokens[:, : self.size], task.pad)
        index = np.searchsorted(self.trained, keys).clip(max=len(self.trained) - 1)
        mine = keys >> np.uint64(63) == HALVES[self.split]
        return mine & (self.trained[index] != keys)


def sequence_keys(tokens: NDArray[Any], pad: int) -> Keys:
    """Hash each row of tokens [n, T], independently of its padding.

    Different sequences collide with a probability of about 2^-60; a collision would hold out a
    sequence needlessly.
    """
    weights = np.random.default_rng(KEY).integers(0, 2**64, tokens.shape[1], dtype=np.uint64)
    return np.einsum("nt,t->n", tokens - pad, weights, dtype=np.uint64, casting="unsafe")


def _distinct(task: Task, split: str, data_seed: int, size: int, length: int) -> NDArray[Any]:
    """Draw distinct sequences [size, T], in the order in which they first occur."""
    dtype = np.int16 if len(task.vocab) < 2**15 else np.int64
    known = np.empty((0, task.input_size(length)), dtype=dtype)
    step = without_success = 0
    while len(known) < size:
        drawn = task.sample(generator(data_seed, split, step), np.full(size, length)).tokens
        rows = np.concatenate([known, drawn.astype(dtype)])
        first = np.sort(np.unique(sequence_keys(rows, task.pad), return_index=True)[1])
        without_success = 0 if len(first) > len(known) else without_success + 1
        if without_success == 30:  # a last sequence is missed with probability exp(-30)
            raise UserError(
                f"{task.name} has too few different sequences of length {length}: "
                f"found {len(first)} of {size}"
            )
        known = rows[first]
        step += 1
    return known[:size]
