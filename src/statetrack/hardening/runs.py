"""Hardening a run: its sequences, its accuracy before and after, and the new run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from statetrack.compiler.folders import HARDENED
from statetrack.compiler.wording import counted
from statetrack.errors import UserError
from statetrack.files import whole_folder, write_json
from statetrack.hardening.automaton import Reading, accepting_as, agree
from statetrack.hardening.report import Hardened
from statetrack.models import SequenceModel
from statetrack.tasks import Batch, Stream, Task
from statetrack.training import Run, RunConfig, evaluate, finite_training_set
from statetrack.training.evaluate import predict
from statetrack.training.optim import make_optimizer

JUDGED = 1024  # sequences on which roundings are judged
CHECKED = 256  # of them, on which it is checked that there is something to harden


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


@dataclass(frozen=True)
class Learned:
    """How well a model answers sequences of its training lengths."""

    accuracy: float  # over all scored positions
    constant: float  # of always giving the most frequent answer

    def __bool__(self) -> bool:
        """Whether accuracy is at least halfway between the constant answer's and 1."""
        return self.accuracy >= (1 + self.constant) / 2

    def __str__(self) -> str:
        return (
            f"it has {self.accuracy:.1%} of the answers right at its training lengths, where "
            f"always the same answer gives {self.constant:.1%}"
        )


def learned(model: SequenceModel, task: Task, validation: Batch) -> Learned:
    """Measure a model on the first sequences of the training lengths."""
    tokens, targets = validation.tokens[:CHECKED], validation.targets[:CHECKED]
    scored = task.scored(targets)
    right = (predict(model, tokens) == targets)[scored]
    most = np.bincount(targets[scored]).max()
    return Learned(float(right.mean()), float(most / scored.sum()))


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


@dataclass(frozen=True)
class Compared:
    """The model's automaton beside the task's."""

    reading: Reading | None  # None: it has none
    is_the_tasks: bool | None  # None: one of them has none
    why: str | None  # they cannot be compared

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        told = {"is_the_tasks": self.is_the_tasks, "why": self.why}
        return {**told, **(self.reading.to_dict() if self.reading else {"dfa": None})}

    def __str__(self) -> str:
        if self.reading is None:
            return f"No automaton: {self.why}."
        states = (
            "Before its weights are rounded to float32, the model is an automaton of "
            f"{counted(self.reading.dfa.states, 'state')}"
        )
        if self.is_the_tasks is None:
            return f"{states}; {self.why}."
        verb = "answers" if self.is_the_tasks else "does not answer"
        return f"{states}, which {verb} as the task's at every length."


def compare_automata(hardened: Hardened, config: RunConfig) -> Compared:
    """Read the automaton off a hardened model and hold it against the task's."""
    try:
        reading = hardened.read(config.task.vocab)
    except UserError as error:
        return Compared(None, None, str(error))
    wanted = config.task.automaton()
    if wanted is None:
        return Compared(reading, None, "the task has none to compare it with")
    same = agree(reading.dfa, wanted)
    if same:
        reading = replace(reading, dfa=accepting_as(reading.dfa, wanted))
    return Compared(reading, same, None)


def write_run(
    folder: Path, config: RunConfig, step: int, hardened: Hardened, automata: Compared
) -> Run:
    """A new run with the hardened model as its only checkpoint, at the same step.

    Beside it is what was done, in `hardened.json`, and its automaton, if there is one, in
    `automaton.json`, a file as `dfa:FILE` takes.
    """
    with whole_folder(folder):
        made = Run.create(folder, replace(config, model=hardened.model.config))
        write_json(folder / HARDENED, hardened.to_dict())
        # without the optimiser's moments: such a run can be evaluated, not trained further
        made.save(step, hardened.model, make_optimizer(hardened.model, config.training))
        if automata.reading:
            write_json(folder / "automaton.json", automata.reading.dfa.to_json())
    return made
