"""Hardening a run: its sequences, its accuracy before and after, and the new run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from statetrack.models import SequenceModel
from statetrack.tasks import Batch, Stream
from statetrack.theory.hardening.automaton import agree
from statetrack.theory.hardening.report import Hardened
from statetrack.training import Run, RunConfig, evaluate, finite_training_set
from statetrack.training.optim import make_optimizer

JUDGED = 1024  # sequences on which roundings are judged


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers at one length, over all scored positions."""

    length: int
    before: float
    after: float


def training_lengths(config: RunConfig) -> Batch:
    """Fresh sequences of the lengths that a run was trained on."""
    t = config.training
    stream = Stream(config.task, "validation", t.data_seed, JUDGED, t.min_length, t.max_length)
    return stream.batch(0)


def compare(
    config: RunConfig,
    before: SequenceModel,
    after: SequenceModel,
    lengths: Sequence[int],
    samples: int,
) -> list[Accuracy]:
    """Two models of a run on the same sequences of each length."""
    exclude = finite_training_set(config)
    rows = []
    for length in lengths:
        told = [
            evaluate(
                model,
                config.task,
                length,
                samples=samples,
                data_seed=config.training.data_seed,
                exclude=exclude,
            ).token_accuracy
            for model in (before, after)
        ]
        rows.append(Accuracy(length, *told))
    return rows


def is_the_tasks(hardened: Hardened, config: RunConfig) -> bool | None:
    """Whether the model's automaton answers as the task's does; None if the task has none."""
    wanted = config.task.automaton()
    read = hardened.automaton(config.task.vocab)
    return None if wanted is None else agree(read, wanted)


def write_run(folder: Path, config: RunConfig, step: int, hardened: Hardened) -> Run:
    """A new run with the hardened model as its only checkpoint, at the same step."""
    made = Run.create(folder, replace(config, model=hardened.model.config))
    # without the optimiser's moments: such a run can be evaluated, not trained further
    made.save(step, hardened.model, make_optimizer(hardened.model, config.training))
    return made
