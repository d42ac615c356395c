"""The batches of a run: its stages, finite data, and sequences whose state is carried."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from statetrack.errors import UserError
from statetrack.tasks import Batch, Data, FiniteDataset, Stream, generator
from statetrack.training.config import RunConfig, Segment

ROWS = 3  # of metrics in a row whose accuracy must reach `until`


class Batches:
    """The batch of every step of a run, counted from 0."""

    def __init__(self, config: RunConfig, dataset: FiniteDataset | None) -> None:
        self.segments = [*config.segments()]
        self.until = [stage.until for stage in config.stages] or [None]
        self.stage, self.recent = 0, list[float]()  # the accuracies of its last rows
        self.starts = [segment.start for segment in self.segments]
        self.sources: list[Data] = [dataset or _stream(s.config) for s in self.segments]
        t = config.training
        self.parts = t.carry
        # the first step that carries the state begins a sequence
        self.carry_from = -(-round(t.carry_start * t.steps) // t.carry) * t.carry
        self.carried = [CarriedStream(s.config) for s in self.segments if t.carry > 1]

    def segment(self, step: int) -> Segment:
        """Return the stage that a step belongs to."""
        return self.segments[self._index(step)]

    def batch(self, step: int) -> Batch:
        """Return the batch of a step."""
        sources = self.carried if self.carries(step) else self.sources
        return sources[self._index(step)].batch(step)

    def carries(self, step: int) -> bool:
        """Whether a step reads a part of a long sequence."""
        return self.parts > 1 and step >= self.carry_from

    def first_part(self, step: int) -> int:
        """Return the step that reads the first part of the sequences that `step` reads."""
        return step - step % self.parts if self.carries(step) else step

    def observe(self, step: int, accuracy: float) -> bool:
        """Record the accuracy at a step, counted from 1; return whether the stage ends early.

        A run that resumes must call it with the rows of metrics that it has, in order.
        """
        stage = self._index(step - 1)
        if stage != self.stage:
            self.stage, self.recent = stage, []
        self.recent = [*self.recent, accuracy][-ROWS:]
        until = self.until[stage]
        if until is None or len(self.recent) < ROWS or min(self.recent) < until:
            return False
        saved = self.starts[stage + 1] - step
        self._begin_next(saved)
        return saved > 0

    def _begin_next(self, saved: int) -> None:
        """Let the next stage begin this many steps earlier, and give them to the last one."""
        for i in range(self.stage + 1, len(self.segments)):
            self.starts[i] -= saved
            self.segments[i] = self.segments[i]._replace(start=self.starts[i])
        last = self.segments[-1].config
        training = replace(last.training, steps=last.training.steps + saved)
        self.segments[-1] = Segment(self.starts[-1], replace(last, training=training))

    def _index(self, step: int) -> int:
        return bisect_right(self.starts, step) - 1


class CarriedStream:
    """Long sequences, of which consecutive steps read consecutive parts of `max_length`.

    A step whose number is a multiple of `parts` reads the first part of new sequences.
    """

    def __init__(self, config: RunConfig) -> None:
        t = config.training
        self.task, self.data_seed = config.task, t.data_seed
        self.size, self.parts = t.batch_size, t.carry
        self.width = self.task.input_size(t.max_length)  # tokens of a part
        self.length = t.max_length + (t.carry - 1) * self.width
        if self.task.input_size(self.length) != t.carry * self.width:
            raise UserError(f"carry needs sequences of any length; {self.task.name} has others")
        self._sequences: tuple[int, Batch | None] = (-1, None)

    def batch(self, step: int) -> Batch:
        first, part = step - step % self.parts, step % self.parts
        if self._sequences[0] != first:
            rng = generator(self.data_seed, "train", first)
            lengths = np.full(self.size, self.length)
            self._sequences = (first, self.task.sample(rng, lengths))
        whole = self._sequences[1]
        assert whole is not None
        columns = slice(part * self.width, (part + 1) * self.width)
        return Batch(whole.tokens[:, columns], whole.targets[:, columns], whole.lengths)


def _stream(config: RunConfig) -> Stream:
    t = config.training
    return Stream(config.task, "train", t.data_seed, t.batch_size, t.min_length, t.max_length)


def finite_training_set(config: RunConfig) -> FiniteDataset | None:
    """Return the sequences that a run is trained on if `dataset_size` is given, else None."""
    t = config.training
    if t.dataset_size is None:
        return None
    return FiniteDataset(
        config.task,
        "train",
        t.data_seed,
        t.dataset_size,
        t.max_length,
        batch_size=t.batch_size,
        order_seed=t.seed,
    )
