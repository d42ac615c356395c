"""Where batches come from: endless streams, and finite sets that are gone through in epochs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from statetrack.config import at_least, one_of
from statetrack.errors import UserError
from statetrack.tasks.base import Batch, Ints, Task, generator

ORDER = 0x6F72646572  # keeps the order's random stream apart from those of the data
KEY = 0x6B6579  # likewise, of the weights of keys
HALVES = {"validation": 0, "test": 1}  # which half of the untrained sequences a split has

Keys = NDArray[np.uint64]


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
    is left out.
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
    """What an evaluation may ask after training on a finite set: nothing that is trained on.

    What is left of that length falls to validation or to test by its key, so that no sequence is
    in two splits. Other lengths are not trained on and drawn as ever.
    """

    def __init__(self, train: FiniteDataset, split: str) -> None:
        one_of("split", split, HALVES)
        self.split, self.length = split, train.length
        self.size = train.tokens.shape[1]
        self.trained = np.sort(sequence_keys(train.tokens, train.task.pad))

    def sample(
        self, task: Task, rng: np.random.Generator, lengths: Ints, *, prefixes: bool = False
    ) -> Batch:
        """As task.sample; with `prefixes`, of longer sequences of one length: by their prefix."""
        batch = task.sample(rng, lengths)
        asked = batch.lengths >= self.length if prefixes else batch.lengths == self.length
        barred = np.flatnonzero(asked)
        barred = barred[~self._allowed(task, batch.tokens[barred])]
        draws = max(len(barred), min(1024, 1 + (1 << 20) // batch.tokens.shape[1]))
        fruitless = 0
        while len(barred):
            # all that is drawn anew has one length, so any will do for any
            again = task.sample(rng, np.full(draws, batch.lengths[barred[0]])).tokens
            again = again[self._allowed(task, again)][: len(barred)]
            batch.tokens[barred[: len(again)], : again.shape[1]] = again
            barred = barred[len(again) :]
            fruitless = 0 if len(again) else fruitless + draws
            if fruitless > 30 * (len(self.trained) + 1):
                raise UserError(
                    f"{task.name} has no sequence of length {self.length} left for {self.split}: "
                    f"{len(self.trained)} of them are trained on"
                )
        return batch._replace(targets=task.solve(batch.tokens))

    def _allowed(self, task: Task, tokens: Ints) -> NDArray[np.bool_]:
        keys = sequence_keys(tokens[:, : self.size], task.pad)
        place = np.searchsorted(self.trained, keys).clip(max=len(self.trained) - 1)
        mine = keys >> np.uint64(63) == HALVES[self.split]
        return mine & (self.trained[place] != keys)


def sequence_keys(tokens: NDArray[Any], pad: int) -> Keys:
    """A number for each row of tokens [n, T]: the same for the same one, however it is padded.

    Others share it with a chance of about 2^-60: such a sequence would be left out for nothing.
    """
    weights = np.random.default_rng(KEY).integers(0, 2**64, tokens.shape[1], dtype=np.uint64)
    return np.einsum("nt,t->n", tokens - pad, weights, dtype=np.uint64, casting="unsafe")


def _distinct(task: Task, split: str, data_seed: int, size: int, length: int) -> NDArray[Any]:
    """[size, T] different sequences, in the order in which they were first drawn."""
    dtype = np.int16 if len(task.vocab) < 2**15 else np.int64
    known = np.empty((0, task.input_size(length)), dtype=dtype)
    step = fruitless = 0
    while len(known) < size:
        drawn = task.sample(generator(data_seed, split, step), np.full(size, length)).tokens
        rows = np.concatenate([known, drawn.astype(dtype)])
        first = np.sort(np.unique(sequence_keys(rows, task.pad), return_index=True)[1])
        fruitless = 0 if len(first) > len(known) else fruitless + 1
        if fruitless == 30:  # misses one last sequence with a chance of about exp(-30)
            raise UserError(
                f"{task.name} has too few different sequences of length {length}: "
                f"found {len(first)} of {size}"
            )
        known = rows[first]
        step += 1
    return known[:size]
