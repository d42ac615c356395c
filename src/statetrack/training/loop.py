"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from statetrack.config import to_dict
from statetrack.errors import UserError, check_type
from statetrack.files import check_new, sole_writer
from statetrack.memory import check_memory
from statetrack.models import MODULE_BYTES, SequenceModel, model_size
from statetrack.ops import cross_entropy
from statetrack.tasks import IGNORE, Data, FiniteDataset, HeldOut, Stream, generator
from statetrack.training.config import RunConfig
from statetrack.training.evaluate import evaluate
from statetrack.training.optim import (
    learning_rate,
    make_optimizer,
    recorded_betas,
    saturation_penalty,
    saturation_weight,
)
from statetrack.training.run_folder import Run


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


def train(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Run:
    """Train a model and write it to a run folder.

    On the same machine and thread count, the same configuration gives the same weights bit for bit,
    even if the run was interrupted at any moment and resumed.

    Args:
        config: The task, the model and how it is trained.
        folder: A folder that does not exist yet or, with `resume`, that of an interrupted run.
        resume: Continue from the folder's last checkpoint, if it has one.
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
    _check_memory(config)
    torch.manual_seed(config.training.seed)
    model = SequenceModel(config.model)
    optimizer = make_optimizer(model, config.training)
    t = config.training
    dataset = finite_training_set(config)
    data: Data = dataset or Stream(
        config.task, "train", t.data_seed, t.batch_size, t.min_length, t.max_length
    )
    data.batch(0)
    validated = t.eval_ranges if t.eval_every else ()
    if dataset and any(low <= t.max_length <= high for low, high in validated):
        _check_validation(config, dataset)
    # every error in the configuration has been raised by now, before a folder is made
    folder = Path(folder)
    if resume:
        run = Run.open(folder)
        if run.config != config:
            where = _difference(run.config, config)
            raise UserError(f"{folder} holds a run with another configuration: {where}")
    else:
        check_new(folder)
    with sole_writer(folder):
        if resume:
            run.tidy()
        else:
            run = Run.create(folder, config)
        start = 0
        if run.checkpoint_steps():
            start, tensors = run.load()
            run.restore(tensors, model, optimizer, start)
        run.rewind_metrics(start)
        _Loop(run, model, optimizer, data, dataset).train(start, on_progress)
    return run


def _check_memory(config: RunConfig) -> None:
    """Raise a UserError if the run needs more memory than there is, by a lower bound."""
    t, model, size = config.training, config.model, model_size(config.model)
    tokens = t.batch_size * config.task.input_size(t.max_length)
    # weights, gradients and AdamW's two moments; per token at least the inputs of each block, its
    # mixer and its MLP, and the logits with their gradient
    numbers = 4 * size.parameters + t.batch_size * size.state
    numbers += tokens * (3 * model.num_layers * model.hidden_size + 2 * model.vocab_size)
    what = f"training {size.parameters:.3g} parameters with AdamW on {tokens:,} tokens at once"
    check_memory(4 * numbers + MODULE_BYTES * size.modules, what)


def _check_validation(config: RunConfig, train: FiniteDataset) -> None:
    """Raise a UserError if the training set leaves no sequence of its length to validate on."""
    rng = generator(config.training.data_seed, "validation", 0)
    HeldOut(train, "validation").sample(config.task, rng, np.array([train.length]))


def _difference(old: RunConfig, new: RunConfig) -> str:
    """Name the first option in which two configurations differ, and its values."""
    for part in ("task", "model", "training"):
        for name, value in to_dict(getattr(old, part)).items():
            other = to_dict(getattr(new, part)).get(name)
            if value != other:
                return f"{part}.{name}: {value!r}, not {other!r}"
    raise AssertionError("they are the same")


class _Loop:
    def __init__(
        self,
        run: Run,
        model: SequenceModel,
        optimizer: torch.optim.Optimizer,
        data: Data,
        exclude: FiniteDataset | None,
    ) -> None:
        self.run, self.model, self.optimizer, self.data = run, model, optimizer, data
        self.exclude = exclude  # from validation
        self.config = run.config.training
        bf16 = self.config.precision == "bf16"
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=bf16)

    def train(self, start: int, on_progress: Callable[[Progress], None]) -> None:
        began = time.perf_counter()
        config = self.config
        for step in range(start, config.steps):
            loss, penalty, accuracy = self.step(step)
            done = step + 1
            if not math.isfinite(loss + penalty):
                raise self.diverged(f"the loss is {loss} at step {done}")
            seconds = time.perf_counter() - began
            row = {"loss": loss, "accuracy": accuracy}
            if config.saturation:
                row["penalty"] = penalty
            if done % config.log_every == 0 or done == config.steps:
                lr = learning_rate(config, step)
                self.run.log({"step": done, "kind": "train", **row, "lr": lr, "seconds": seconds})
            if config.eval_every and (done % config.eval_every == 0 or done == config.steps):
                self.validate(done)
            if done % config.checkpoint_every == 0 or done == config.steps:
                if not all(p.isfinite().all() for p in self.model.parameters()):
                    raise self.diverged(f"the weights are not finite after step {done}")
                self.run.save(done, self.model, self.optimizer)
            left = seconds / (done - start) * (config.steps - done)
            on_progress(Progress(done, config.steps, loss, accuracy, seconds, left))

    def diverged(self, what: str) -> DivergedError:
        """Return the error that names the last good checkpoint."""
        good = self.run.checkpoint_steps()
        last = self.run.checkpoint_file(good[-1]) if good else "none was written yet"
        return DivergedError(f"{what}; last good checkpoint: {last}")

    def step(self, step: int) -> tuple[float, float, float]:
        """Take an optimiser step; return the loss, penalty and accuracy of its batch before it."""
        config = self.config
        batch = self.data.batch(step)
        tokens, targets = torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
        weight = saturation_weight(config, step)
        with self.autocast, recorded_betas(self.model) as betas:
            logits, _ = self.model(tokens)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        penalty = torch.zeros(())
        if weight and betas:
            real = tokens != self.run.config.task.pad
            penalty = weight * saturation_penalty(betas, real)
        self.optimizer.zero_grad(set_to_none=True)
        (loss + penalty).backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        self.optimizer.step()
        asked = targets != IGNORE
        right = (logits.argmax(-1) == targets)[asked]
        return float(loss.detach()), float(penalty.detach()), float(right.float().mean())

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
            self.run.log({"step": step, "kind": "validation", **result.to_json(positions=False)})


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
