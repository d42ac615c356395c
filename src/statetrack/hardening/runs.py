"""Harden a run: its sequences, its accuracy before and after, and the new run's folder."""

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
from statetrack.hardening.agreement import accepting_as, agree
from statetrack.hardening.automaton import Reading
from statetrack.hardening.report import Hardened
from statetrack.models import SequenceModel
from statetrack.tasks import Batch, Stream, Task
from statetrack.training import Run, RunConfig, evaluate, finite_training_set
from statetrack.training.evaluate import predict

VALIDATION_SEQUENCES = 1024  # on which candidates are judged
LEARNED_SEQUENCES = 256  # of them, on which it is checked that the task was learned


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers at one length, over all scored positions."""

    length: int
    before: float
    after: float


def validation_batch(config: RunConfig) -> Batch:
    """Return fresh sequences of the lengths that a run was trained on."""
    t = config.training
    stream = Stream(
        config.task, "validation", t.data_seed, VALIDATION_SEQUENCES, t.min_length, t.max_length
    )
    return stream.batch(0)


@dataclass(frozen=True)
class Learned:
    """A model's accuracy at its training lengths."""

    accuracy: float  # over all scored positions
    constant: float  # accuracy of always giving the most frequent answer

    def __bool__(self) -> bool:
        """Whether accuracy is at least halfway between the constant answer's and 1."""
        return self.accuracy >= (1 + self.constant) / 2

    def __str__(self) -> str:
        return (
            f"{self.accuracy:.1%} of its answers are right at its training lengths; the most "
            f"frequent answer alone gives {self.constant:.1%}"
        )


def learned(model: SequenceModel, task: Task, validation: Batch) -> Learned:
    """Measure a model's accuracy on the first sequences of `validation`."""
    tokens, targets = (part[:LEARNED_SEQUENCES] for part in (validation.tokens, validation.targets))
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
    """Evaluate two models of a run on the same sequences of each length."""
    exclude = finite_training_set(config)
    rows = []
    for length in lengths:
        accuracies = [
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
        rows.append(Accuracy(length, *accuracies))
    return rows


@dataclass(frozen=True)
class Comparison:
    """A comparison of the model's automaton with the task's."""

    reading: Reading | None  # None: no automaton can be read off the model
    is_the_tasks: bool | None  # None: the model or the task has no automaton
    reason: str | None  # why they cannot be compared

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        found = {"is_the_tasks": self.is_the_tasks, "reason": self.reason}
        return {**found, **(self.reading.to_dict() if self.reading else {"dfa": None})}

    def __str__(self) -> str:
        if self.reading is None:
            return f"Not proved exact at every length: {self.reason}."
        states = counted(self.reading.dfa.states, "state")
        if self.is_the_tasks:
            how = "proved in float64"
            if self.reading.margin is not None:
                how += ", to first order in the decaying channels"
            exact = f"Exact at every length, up to rounding ({how})"
            return f"{exact}: the model computes the task's automaton, which has {states}."
        if self.is_the_tasks is None:
            computes = f"The model computes an automaton with {states}"
            return f"Not compared with the task: {self.reason}. {computes}."
        return (
            f"Not exact: the model computes an automaton with {states} whose answers or symbols "
            "differ from the task's."
        )


def compare_automata(hardened: Hardened, config: RunConfig) -> Comparison:
    """Read the automaton off a hardened model and compare it with the task's."""
    try:
        reading = hardened.read(config.task.vocab)
    except UserError as error:
        return Comparison(None, None, str(error))
    wanted = config.task.automaton()
    if wanted is None:
        return Comparison(reading, None, "the task has no automaton")
    same = agree(reading.dfa, wanted)
    if same:
        reading = replace(reading, dfa=accepting_as(reading.dfa, wanted))
    return Comparison(reading, same, None)


def write_run(
    folder: Path, config: RunConfig, step: int, hardened: Hardened, automata: Comparison
) -> Run:
    """Write a new run with the hardened model as its only checkpoint, at the same step.

    `hardened.json` says what was done; `automaton.json` has the model's automaton, if there is one,
    in the format of `dfa:FILE`.
    """
    with whole_folder(folder):
        made = Run.create(folder, replace(config, model=hardened.model.config))
        write_json(folder / HARDENED, hardened.to_dict())
        # without the optimiser's moments: the run can be evaluated, not trained further
        made.save(step, hardened.model)
        if automata.reading:
            write_json(folder / "automaton.json", automata.reading.dfa.to_json())
    return made
