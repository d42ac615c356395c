"""The jobs of a sweep: their interface, and the job that trains and evaluates a model."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from statetrack.config import changed, check_types, option, to_dict
from statetrack.files import plain_name
from statetrack.training import Callback, RunConfig, length_range
from statetrack.training.config import RUN_SCHEMA

JOB_SCHEMA = 1
KEY_SIZE = 16
THEOREM_6 = "theorem6"  # a value of Job.compiled that is no language


class SweepJob(ABC):
    """A unit of work of a sweep, in a folder of its own.

    Subclasses are frozen dataclasses with the fields `name` and `seconds`.
    """

    name: str  # what people read; need not be unique
    seconds: float  # expected CPU seconds
    schemas: ClassVar[tuple[int, ...]]  # versions of what the key is made of

    @property
    @abstractmethod
    def seed(self) -> int:
        """The seed of the run."""

    @property
    def device(self) -> str:
        """The name of the device, as `TrainingConfig.device`; the key does not depend on it."""
        return "cpu"

    def on(self, device: str) -> Self:
        """Return this job on another device, with the same key; this job if it has no device."""
        return self

    @cached_property
    def key(self) -> str:
        """A hash of everything that the result depends on: all but name, expected time and device.

        Options at their default are left out, so that a new option does not change the key.
        """
        facts = {k: v for k, v in changed(self).items() if k not in ("name", "seconds")}
        text = json.dumps({"schema": self.schemas, **facts}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_SIZE]

    @property
    def folder(self) -> str:
        """The name of its folder in a sweep."""
        return f"{plain_name(self.name)[:60]}-{self.key}"

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the content of job.json."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Return the fields of the result that are known before the job is done: task, seed, ..."""

    @abstractmethod
    def measure(
        self, folder: Path, report: Callable[[Any], None], callbacks: Sequence[Callback]
    ) -> dict[str, Any]:
        """Do the job, or the rest of it; return the fields of the result that it measures.

        Args:
            folder: of the job, which no other process writes to.
            report: called repeatedly with the `Progress` of training.
            callbacks: of training.
        """


@dataclass(frozen=True)
class Job(SweepJob):
    """One training run and the measurements of its model."""

    schemas = (JOB_SCHEMA, RUN_SCHEMA)

    name: str = option("", "what people read; need not be unique")
    config: RunConfig = option(None, "the run")  # noqa: RUF009
    lengths: tuple[str, ...] = option((), "lengths to evaluate, or ranges such as 40-256")
    curve: int | None = option(None, "trace accuracy against length up to this one")
    samples: int = option(1024, "sequences per evaluation", low=1)
    max_tokens: int | None = option(
        None, "tokens per evaluation, beyond which it has fewer sequences, but one at least"
    )
    harden: bool = option(False, "harden the model, and evaluate the result in the same way")
    hardened_lengths: tuple[str, ...] = option((), "further lengths, for the hardened model alone")
    orders: tuple[int, ...] = option((1, 2, 3), "orders that harden tries")
    compiled: str | None = option(
        None,
        "start from weights that were not trained: those of this compiled language, or theorem6, "
        "for addition modulo m by Theorem 6 in the job's own model",
    )
    noise: float = option(0.0, "standard deviation of Gaussian noise added to those weights", low=0)
    spectrum: bool = option(False, "keep a sample of the eigenvalues of the trained model")
    seconds: float = option(60.0, "expected CPU seconds, for the plan", low=0)

    def __post_init__(self) -> None:
        check_types(self)
        for ends in (*self.ranges.values(), *map(length_range, self.hardened_lengths)):
            self.config.task.check_lengths(*ends)

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The lengths to evaluate as (least, greatest), by their text."""
        return {text: length_range(text) for text in self.lengths}

    @property
    def device(self) -> str:
        return self.config.training.device

    def on(self, device: str) -> Self:
        training = replace(self.config.training, device=device)
        return replace(self, config=replace(self.config, training=training))

    def samples_at(self, length: int) -> int:
        """Return the number of sequences of an evaluation up to this length."""
        if self.max_tokens is None:
            return self.samples
        return max(1, min(self.samples, self.max_tokens // length))

    def to_json(self) -> dict[str, Any]:
        """Return the content of job.json."""
        return {"schema": JOB_SCHEMA, **to_dict(self), "config": self.config.to_json()}

    def description(self) -> dict[str, Any]:
        from statetrack.sweep.measurements import describe

        return describe(self)

    def measure(
        self, folder: Path, report: Callable[[Any], None], callbacks: Sequence[Callback]
    ) -> dict[str, Any]:
        from statetrack.sweep.measurements import measure

        return measure(self, folder, report, callbacks)
