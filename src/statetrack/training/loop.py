"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statetrack.config import to_dict
from statetrack.devices import device_of, on_cpu, use_device
from statetrack.errors import UserError, check_type
from statetrack.files import check_new, sole_writer
from statetrack.memory import check_memory
from statetrack.models import (
    MODULE_BYTES,
    ModelConfig,
    SequenceModel,
    chunked_backward,
    compile_blocks,
    model_size,
)
from statetrack.tasks import FiniteDataset, HeldOut, generator
from statetrack.training.batches import Batches, finite_training_set
from statetrack.training.callbacks import Callback
from statetrack.training.config import RunConfig
from statetrack.training.device_batches import DeviceBatches
from statetrack.training.evaluate import evaluate
from statetrack.training.objective import Objective
from statetrack.training.optim import (
    learning_rate,
    make_optimizer,
    saturation_weight,
)
from statetrack.training.run_folder import Clock, Run
from statetrack.training.start import difference, start_from
from statetrack.training.tensors import restore_tensors


class DivergedError(UserError):
    """The loss or a weight is NaN or infinite."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run, for a display."""

    step: int
    steps: int
    loss: float
    accuracy: float  # of the supervised positions of the batch
    seconds: float  # since this process began to train
    seconds_left: float

    @property
    def text(self) -> str:
        """Step, loss, accuracy and the time left."""
        numbers = f"loss {self.loss:.4f}, accuracy {self.accuracy:.3f}"
        return f"step {self.step}/{self.steps}, {numbers}, {self.seconds_left:.0f} s left"


def train(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    steps: int | None = None,
    init_from: Path | None = None,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Run:
    """Train a model and write it to a run folder.

    On the CPU of the same machine and with the same thread count, the same configuration gives the
    same weights bit for bit, even if the run was interrupted at any moment and resumed. A time
    budget is the exception. A run may be resumed on another device.

    Args:
        config: The task, the model and how it is trained.
        folder: A folder that does not exist yet or, with `resume`, that of an interrupted run.
        resume: Continue from the folder's last checkpoint, if it has one.
        steps: With `resume`, the new number of steps; a finished run goes on, with the learning
            rate of a run of that many steps and without the rules that stop it early.
        init_from: The folder of a run, trained or compiled, whose weights the model starts with.
        callbacks: Called at the start, with every row of metrics, and at the end.
        on_progress: Called after every step.

    Returns:
        The run, whose `model()` is the trained model.

    >>> from statetrack import DeltaNetConfig, ModelConfig, TrainingConfig, make_task
    >>> model = ModelConfig(vocab_size=3, hidden_size=16, mixer=DeltaNetConfig())
    >>> config = RunConfig(make_task("parity"), model, TrainingConfig(steps=2, batch_size=8))
    >>> train(config, "parity-run").checkpoint_steps()
    [2]
    """
    check_type("config", config, RunConfig, "a RunConfig")
    check_type("folder", folder, (str, Path), "the path of a folder")
    folder = Path(folder)
    if resume and init_from is not None:
        raise UserError("give init_from for a new run or resume an old one, not both")
    if steps is not None and not resume:
        raise UserError("give the steps of a new run in its configuration")
    run = _open(folder, config) if resume else None
    whole = config if run is None or steps is None else extended(config, steps, run)
    t = whole.training
    device = use_device(t.device)
    if device.type == "cpu":
        longest = whole.task.input_size(t.max_length)
        check_training_memory(whole.model, t.batch_size, longest, t.backward_chunk)
    torch.manual_seed(t.seed)
    with on_cpu():  # the same first weights for every device
        model = SequenceModel(whole.model)
    start_row = None if init_from is None else start_from(model, whole, init_from)
    model.to(device)
    if t.compile:
        compile_blocks(model)
    optimizer = make_optimizer(model, t)
    dataset = finite_training_set(whole)
    data = Batches(whole, dataset)
    for segment in data.segments:
        data.batch(segment.start)
    validated = t.eval_ranges if t.eval_every else ()
    if dataset and any(low <= t.max_length <= high for low, high in validated):
        _check_validation(whole, dataset)
    # every error in the configuration has been raised by now, before a folder is made
    if run is None:
        check_new(folder)
    with sole_writer(folder):
        if run is None:
            run = Run.create(folder, whole)
            if start_row is not None:
                run.save(0, model)
                run.log({"step": 0, "kind": "init", **start_row})
        else:
            run.tidy()
            run.change(whole)
        start = 0
        if run.checkpoint_steps():
            start, tensors = run.load()
            restore_tensors(tensors, model, run.folder, optimizer, start)
        run.rewind_metrics(start, drop_stop=steps is not None)
        if not run.finished:
            _Loop(run, model, optimizer, data, dataset, callbacks).train(start, on_progress)
    return run


def extended(config: RunConfig, steps: int, run: Run) -> RunConfig:
    """Return the configuration with more steps, those of its last stage, and no early stops."""
    check_type("steps", steps, int, "a whole number")
    done = (run.checkpoint_steps() or [0])[-1]
    if steps <= done:
        raise UserError(f"{run.folder} has {done} steps already; give more than that, not {steps}")
    training = replace(
        config.training, steps=steps, stop_at_score=None, stop_below_score=None, time_budget=None
    )
    stages = config.stages
    if stages:
        last = stages[-1].steps + steps - config.training.steps
        if last < 1:
            raise UserError(
                f"the stages before the last one have {steps - last} steps; give more than that"
            )
        stages = (*stages[:-1], replace(stages[-1], steps=last))
    return replace(config, training=training, stages=stages)


def _open(folder: Path, config: RunConfig) -> Run:
    run = Run.open(folder)
    if run.config != config:
        where = difference("", to_dict(run.config), to_dict(config))
        remedy = "use --init-from for a new run with other options"
        raise UserError(f"{folder} holds a run with another configuration: {where}; {remedy}")
    return run


def check_training_memory(
    model: ModelConfig, batch_size: int, length: int, chunk: int | None = None
) -> None:
    """Raise a UserError if training needs more memory than there is, by a lower bound.

    Args:
        model: the model.
        batch_size: sequences that are read at once.
        length: tokens of the longest of them.
        chunk: tokens of each that are back-propagated at once; None for all.
    """
    chunk = min(chunk or length, length)
    size, tokens = model_size(model), batch_size * chunk
    # weights, gradients and AdamW's two moments; a state for each chunk; per token at least the
    # inputs of each block, its mixer and its MLP, and the logits with their gradient
    numbers = 4 * size.parameters + batch_size * size.state * math.ceil(length / chunk)
    numbers += tokens * (3 * model.num_layers * model.hidden_size + 2 * model.vocab_size)
    what = f"training {size.parameters:.3g} parameters with AdamW on {tokens:,} tokens at once"
    check_memory(4 * numbers + MODULE_BYTES * size.modules, what)


def _check_validation(config: RunConfig, train: FiniteDataset) -> None:
    """Raise a UserError if the training set leaves no sequence of its length to validate on."""
    rng = generator(config.training.data_seed, "validation", 0)
    HeldOut(train, "validation").sample(config.task, rng, np.array([train.length]))


class _Measured(NamedTuple):
    """Numbers of a step, on the device: reading them waits for it."""

    loss: Tensor
    penalty: Tensor
    right: Tensor  # how many scored positions are
    scored: int

    def read(self) -> tuple[float, float, float]:
        """Return loss, penalty and accuracy."""
        accuracy = int(self.right) / self.scored if self.scored else math.nan
        return float(self.loss), float(self.penalty), accuracy


class _Loop:
    def __init__(
        self,
        run: Run,
        model: SequenceModel,
        optimizer: torch.optim.Optimizer,
        data: Batches,
        exclude: FiniteDataset | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.run, self.model, self.optimizer, self.data = run, model, optimizer, data
        self.exclude = exclude  # from validation
        self.callbacks = callbacks
        self.config = run.config.training
        self.device = device_of(model)
        self.batches = DeviceBatches(
            data, run.config.task, self.device, find_real=self.config.saturation > 0
        )
        bf16 = self.config.precision == "bf16"
        self.autocast = torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()
        self.state: Any = None  # carried from the step before
        self.clock = Clock(run)
        scores = [row["scaled"] for row in self._validations(run.metrics())]
        self.best = max(scores, default=-math.inf)

    def train(self, start: int, on_progress: Callable[[Progress], None]) -> None:
        for callback in self.callbacks:
            callback.on_start(self.run)
        try:
            self.steps(start, on_progress)
        finally:
            for callback in self.callbacks:
                callback.on_end(self.run)

    def steps(self, start: int, on_progress: Callable[[Progress], None]) -> None:
        config = self.config
        self.replay_stages(start)
        if self.data.first_part(start) < start:
            self.recompute_state(start)
        loss = penalty = accuracy = math.nan
        for step in range(start, config.steps):
            measured = self.step(step)
            done = step + 1
            last = done == config.steps
            if not last:
                self.batches.prefetch(done)
            logged = done % config.log_every == 0 or last
            # reading a number waits for the device: at every step it would leave a GPU without work
            if logged or step == start or self.device.type == "cpu":
                loss, penalty, accuracy = measured.read()
                if not math.isfinite(loss + penalty):
                    raise self.diverged(f"the loss is {loss} at step {done}")
            row = {"loss": loss, "accuracy": accuracy}
            if config.saturation:
                row["penalty"] = penalty
            if logged:
                row |= {"lr": self.learning_rate(step), **self.clock.times()}
                self.log({"step": done, "kind": "train", **row})
                if self.data.observe(done, accuracy):
                    self.batches.forget()
                    self.log({"step": done, "kind": "stage", "stage": self.data.stage + 1})
            if config.eval_every and (done % config.eval_every == 0 or last):
                self.validate(done)
            reason = None if last else self.stop(done)
            if reason is not None:
                self.log({"step": done, "kind": "stop", "reason": reason, **self.clock.times()})
            if done % config.checkpoint_every == 0 or last or reason is not None:
                if not all(p.isfinite().all() for p in self.model.parameters()):
                    raise self.diverged(f"the weights are not finite after step {done}")
                self.run.save(done, self.model, self.optimizer)
            seconds = self.clock.process_seconds()
            left = seconds / (done - start) * (config.steps - done)
            on_progress(Progress(done, config.steps, loss, accuracy, seconds, left))
            if reason is not None:
                return

    def replay_stages(self, start: int) -> None:
        """Find out from the metrics which stages had ended early by step `start`."""
        rows = [row for row in self.run.metrics() if row.get("kind") == "train"]
        if any(self.data.until) and len(rows) < start // self.config.log_every:
            file = self.run.metrics_file
            raise UserError(f"{file} lacks rows up to step {start}: they say when stages ended")
        for row in rows:
            self.data.observe(row["step"], row["accuracy"])

    def log(self, row: dict[str, Any]) -> None:
        self.run.log(row)
        for callback in self.callbacks:
            callback.on_row(self.run, row)

    def stop(self, done: int) -> str | None:
        """Return why the run ends after `done` steps, if it does."""
        c = self.config
        if c.stop_at_score is not None and self.best >= c.stop_at_score:
            return "score"
        hopeless = c.stop_below_score is not None and self.best < c.stop_below_score
        if hopeless and done >= c.stop_below_step and done % c.eval_every == 0:
            return "hopeless"
        if c.time_budget is not None and self.clock.times()["cpu_seconds"] > c.time_budget:
            return "time"
        return None

    def diverged(self, what: str) -> DivergedError:
        """Return the error that names the last good checkpoint."""
        good = self.run.checkpoint_steps()
        last = self.run.checkpoint_file(good[-1]) if good else "none was written yet"
        return DivergedError(f"{what}; last good checkpoint: {last}")

    def learning_rate(self, step: int) -> float:
        segment = self.data.segment(step)
        return learning_rate(segment.config.training, step - segment.start)

    def step(self, step: int) -> _Measured:
        """Take an optimiser step; return the loss, penalty and accuracy of its batch before it."""
        config = self.config
        batch = self.batches.batch(step)
        objective = Objective(self.model, batch, saturation_weight(config, step), self.autocast)
        state = self.state if self.data.first_part(step) < step else None
        self.optimizer.zero_grad(set_to_none=True)
        chunk = config.backward_chunk or batch.tokens.shape[1]
        with objective.recording():
            _, self.state = chunked_backward(
                objective.run, batch.tokens, objective.chunk_loss, chunk, state=state
            )
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()
        return _Measured(objective.loss, objective.penalty, objective.right, batch.num_scored)

    @torch.no_grad()
    def recompute_state(self, start: int) -> None:
        """Compute the state that step `start` carries on, with the weights as they are.

        Only a run that goes on after its end needs it: other checkpoints lie between sequences.
        """
        for step in range(self.data.first_part(start), start):
            tokens = self.batches.batch(step).tokens
            first = self.data.first_part(step) == step
            _, self.state = self.model(tokens, None if first else self.state)

    def validate(self, step: int) -> None:
        """Evaluate on the validation lengths and log the results."""
        c = self.config
        for lengths in c.eval_ranges:
            result = evaluate(
                self.model,
                self.run.config.task,
                lengths,
                samples=c.eval_samples,
                split="validation",
                data_seed=c.data_seed,
                exclude=self.exclude,
            )
            row = {"step": step, "kind": "validation", **result.to_json(positions=False)}
            self.log(row)
            if lengths == c.eval_ranges[0]:
                self.best = max(self.best, result.scaled)

    def _validations(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of validations on the lengths that count for stopping."""
        lengths = self.config.eval_ranges[:1]
        found = [row for row in rows if row.get("kind") == "validation"]
        return [row for row in found if (row["min_length"], row["max_length"]) in lengths]
