"""The configuration of a run: frozen dataclasses that are also the format of config.json."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from statetrack.config import DEVICE_HELP, at_least, check_types, from_dict, option, to_dict
from statetrack.devices import check_device_name
from statetrack.errors import UserError, check_type
from statetrack.files import read_json
from statetrack.models import ModelConfig
from statetrack.plugins import check_plugins, plugins_of
from statetrack.tasks import PrefixTask, Task

COMPILE_HELP = "run each block through torch.compile"
RUN_SCHEMA = 2  # of config.json, metrics.jsonl and the checkpoints; see docs/run-folder.md


def backward_chunk_option() -> Any:
    """Make the option `backward_chunk` of a configuration."""
    text = "back-propagate over chunks of so many tokens, to save memory; None: all at once"
    return option(None, text, low=1)


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained. The defaults of schedule, optimiser and lengths are the paper's."""

    steps: int = option(1000, "optimiser steps", low=1)
    batch_size: int = option(256, "sequences per step", low=1)
    min_length: int = option(3, "least training length")
    max_length: int = option(40, "greatest training length")
    lr: float = option(1e-3, "peak learning rate", low=0)
    schedule: Literal["cosine", "constant"] = option("cosine", "learning rate after the warm-up")
    warmup: float = option(0.1, "share of the steps over which the learning rate rises from 0")
    min_lr: float = option(1e-6, "learning rate at the end of the cosine", low=0)
    weight_decay: float = option(0.1, "AdamW's weight decay", low=0)
    decay_groups: Literal["paper", "standard"] = option(
        "paper", "what decays: all but Mamba's A and D, or only matrices that are no embedding"
    )
    betas: tuple[float, float] = option((0.9, 0.999), "AdamW's betas")
    eps: float = option(1e-8, "AdamW's epsilon", low=0)
    clip: float | None = option(None, "greatest norm of the gradient; None for no limit")
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16 trains under autocast")
    saturation: float = option(
        0.0, "weight of the penalty on betas between 0 and their maximum", low=0
    )
    saturation_start: float = option(0.35, "share of the steps at which that penalty sets in")
    saturation_full: float = option(0.65, "share of the steps from which it is at full weight")
    seed: int = option(0, "seed of the initialisation, and of the order of a finite data set")
    data_seed: int = option(0, "seed of the data")
    dataset_size: int | None = option(None, "different training sequences; None for no end")
    eval_every: int = option(0, "steps between validations during training; 0 for none", low=0)
    eval_samples: int = option(256, "sequences per validation", low=1)
    eval_lengths: tuple[str, ...] = option(
        ("41-80",),
        "validation lengths, or ranges such as 40-256; the first one counts for stopping",
    )
    stop_at_score: float | None = option(
        None, "end the run when the scaled validation score reaches this"
    )
    stop_below_score: float | None = option(
        None, "end the run if no scaled validation score has reached this by stop_below_step"
    )
    stop_below_step: int = option(0, "the step at which stop_below_score is checked first", low=0)
    time_budget: float | None = option(None, "end the run after this many CPU seconds")
    carry: int = option(
        1, "cut sequences into this many parts and carry the state between them", low=1
    )
    carry_start: float = option(0.5, "share of the steps after which the state is carried")
    backward_chunk: int | None = backward_chunk_option()
    log_every: int = option(10, "steps between rows of metrics", low=1)
    checkpoint_every: int = option(500, "steps between checkpoints", low=1)
    device: str = option("auto", DEVICE_HELP, identity=False)
    compile: bool = option(False, COMPILE_HELP, identity=False)

    def __post_init__(self) -> None:
        check_types(self)
        check_device_name(self.device)
        if self.compile and self.saturation:
            raise UserError(
                "saturation reads betas inside of blocks, which compile does not allow: leave out "
                "compile, or set saturation to 0"
            )
        if not 0 <= self.warmup <= 1:
            raise UserError(f"warmup must be a share of the steps in 0..1; got {self.warmup}")
        if not 0 <= self.saturation_start <= self.saturation_full <= 1:
            raise UserError("need 0 <= saturation_start <= saturation_full <= 1")
        if self.min_lr > self.lr:
            raise UserError(f"min_lr must not exceed lr; got {self.min_lr} and {self.lr}")
        for name in ("seed", "data_seed"):
            if not 0 <= getattr(self, name) < 2**32:
                raise UserError(f"{name} must lie in 0..2^32-1; got {getattr(self, name)}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise UserError(f"clip must be finite and above 0, or none; got {self.clip}")
        if self.time_budget is not None and not 0 < self.time_budget < math.inf:
            raise UserError(f"time_budget must be above 0, or none; got {self.time_budget}")
        if not 0 <= self.carry_start <= 1:
            raise UserError(f"carry_start must be a share of the steps; got {self.carry_start}")
        if self.checkpoint_every % self.carry:
            raise UserError(
                f"checkpoint_every must be a multiple of carry, so that no sequence is cut; got "
                f"{self.checkpoint_every} and {self.carry}"
            )
        stops = (self.stop_at_score, self.stop_below_score)
        if any(stop is not None for stop in stops) and not (self.eval_every and self.eval_lengths):
            raise UserError("stop_at_score and stop_below_score need eval_every and eval_lengths")
        _ = self.eval_ranges
        if not all(0 <= b < 1 for b in self.betas):
            raise UserError(f"betas must lie in 0..1, 1 excluded; got {self.betas}")
        if self.dataset_size is not None:
            at_least("dataset_size", self.dataset_size, self.batch_size)
            if self.min_length != self.max_length:
                raise UserError("a finite data set has one length: min_length = max_length")
            if self.carry > 1:
                raise UserError("the state is carried in endless data only: no dataset_size")

    @property
    def eval_ranges(self) -> tuple[tuple[int, int], ...]:
        """The validation lengths as (least, greatest)."""
        return tuple(map(length_range, self.eval_lengths))


def length_range(text: str) -> tuple[int, int]:
    """Parse a length such as 128 or a range such as 40-256.

    >>> length_range("40-256"), length_range("128")
    ((40, 256), (128, 128))
    """
    match = re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", text)
    if match is None:
        raise UserError(f"a length is a number or a range such as 40-256; got {text!r}")
    return int(match[1]), int(match[2] or match[1])


@dataclass(frozen=True)
class Stage:
    """A part of a run with its own task, lengths or learning rate; None stands for the run's."""

    steps: int = option(1000, "optimiser steps", low=1)
    task: Task | None = option(None, "the task, of the same vocabulary")  # noqa: RUF009
    min_length: int | None = option(None, "least training length")
    max_length: int | None = option(None, "greatest training length")
    lr: float | None = option(None, "peak learning rate")
    schedule: Literal["cosine", "constant"] | None = option(None, "after the stage's warm-up")
    warmup: float | None = option(None, "share of the stage's steps")
    until: float | None = option(
        None, "end the stage when three rows of metrics in a row have at least this accuracy"
    )

    def __post_init__(self) -> None:
        check_types(self)
        if self.until is not None and not 0 < self.until <= 1:
            raise UserError(f"until must be above 0 and at most 1; got {self.until}")


@dataclass(frozen=True)
class RunConfig:
    """A task, a model and how the model is trained, in stages if there are several.

    The stages change what a step trains on and its learning rate; everything else, validation
    included, is that of the run. Their steps add up to `training.steps`. A stage that ends early
    (`until`) leaves the rest of its steps to the last one.
    """

    task: Task
    model: ModelConfig
    training: TrainingConfig
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        check_type("task", self.task, Task, "a Task")
        check_type("model", self.model, ModelConfig, "a ModelConfig")
        check_type("training", self.training, TrainingConfig, "a TrainingConfig")
        if self.model.vocab_size != len(self.task.vocab):
            raise UserError(
                f"task {self.task.name} has {len(self.task.vocab)} tokens, but the model's "
                f"vocab_size is {self.model.vocab_size}"
            )
        t = self.training
        if t.saturation and not any(mixer.has_beta for mixer in self.model.pattern):
            raise UserError(f"saturation acts on betas, and {self.model.title} has none")
        self.task.check_lengths(t.min_length, t.max_length)
        if t.dataset_size is not None and self.task.given_lengths is not None:
            raise UserError(f"{self.task.name} is a finite set itself: no dataset_size")
        if t.eval_every:
            for low, high in t.eval_ranges:
                self.task.check_lengths(low, high)
        if t.carry > 1 and not (
            isinstance(self.task, PrefixTask) and self.task.supervision == "dense"
        ):
            raise UserError(f"carry needs an answer at every position; {self.task.name} has not")
        self._check_stages()

    def _check_stages(self) -> None:
        if not self.stages:
            return
        total = sum(stage.steps for stage in self.stages)
        if total != self.training.steps:
            raise UserError(f"the stages have {total} steps, but steps is {self.training.steps}")
        if self.training.dataset_size is not None or self.training.carry > 1:
            raise UserError("a run in stages has neither dataset_size nor carry")
        for stage in self.stages:
            if stage.task is not None and stage.task.vocab != self.task.vocab:
                raise UserError("the task of a stage must have the vocabulary of the run's task")
        if self.stages[-1].until is not None:
            raise UserError("the last stage ends with the run, so it has no `until`")
        self.segments()  # checks every stage's values

    def segments(self) -> tuple[Segment, ...]:
        """Return the stages, each as a configuration without stages and with its first step."""
        if not self.stages:
            return (Segment(0, self),)
        out, start = [], 0
        for stage in self.stages:
            names = ("steps", "min_length", "max_length", "lr", "schedule", "warmup")
            given = {n: v for n in names if (v := getattr(stage, n)) is not None}
            given["min_lr"] = min(self.training.min_lr, given.get("lr", self.training.lr))
            training = replace(self.training, **given)
            out.append(Segment(start, RunConfig(stage.task or self.task, self.model, training)))
            start += stage.steps
        return tuple(out)

    def to_json(self) -> dict[str, Any]:
        """Return the content of config.json; `plugins` are the modules that it needs, if any."""
        plugins = plugins_of([self.task, *self.model.pattern])
        return {"schema": RUN_SCHEMA, **to_dict(self), **({"plugins": plugins} if plugins else {})}


class Segment(NamedTuple):
    """A stage of a run."""

    start: int  # its first step, counted from 0
    config: RunConfig


def read_versioned(path: Path, known: int) -> dict[str, Any]:
    """Read a configuration file of this schema; return what is left for the configuration.

    Raises:
        UserError: it cannot be read, has another schema or needs plugins that are not loaded.
    """
    data = read_json(path)
    if not isinstance(data, dict) or "schema" not in data:
        raise UserError(f"{path} is not a run's configuration: it lacks the key 'schema'")
    schema = data.pop("schema")
    if schema is True or schema != known:
        raise UserError(f"{path} has schema {schema!r}; this version reads {known}")
    check_plugins(data.pop("plugins", []), str(path))
    return data


def read_config(path: Path) -> RunConfig:
    """Read a configuration file, a run's config.json or one in its format.

    The file of a task such as dfa:FILE is searched beside the configuration file first.
    """
    data = read_versioned(path, RUN_SCHEMA)
    task = data.get("task")
    if isinstance(task, dict) and isinstance(task.get("name"), str):
        inner = task["name"].removeprefix("automaton:")
        kind, _, file = inner.partition(":")
        beside = path.parent / file
        if kind in ("dfa", "group", "dataset") and beside.is_file():
            task["name"] = task["name"].removesuffix(inner) + f"{kind}:{beside}"
    return from_dict(RunConfig, data, str(path))
