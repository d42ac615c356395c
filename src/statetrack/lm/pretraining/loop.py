"""The pretraining loop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from statetrack.config import MAX_WHOLE
from statetrack.devices import on_cpu
from statetrack.errors import UserError
from statetrack.files import check_new, sole_writer
from statetrack.lm.data import PackedBatch, PackedBatches, TokenData
from statetrack.lm.generation import continue_text
from statetrack.lm.hf_model import StateTrackForCausalLM
from statetrack.lm.load import LanguageModel, pretrained_tokenizer
from statetrack.lm.pretraining.checkpoint import PretrainingRun
from statetrack.lm.pretraining.config import PretrainingConfig
from statetrack.lm.pretraining.distributed import Processes, whole
from statetrack.lm.pretraining.objective import MicroBatch, Objective
from statetrack.models import SequenceModel, compile_blocks
from statetrack.training import DivergedError
from statetrack.training.device_batches import Prefetched
from statetrack.training.loop import check_training_memory
from statetrack.training.optim import learning_rate, make_optimizer
from statetrack.training.run_folder import Clock
from statetrack.training.tensors import restore_tensors
from statetrack.training.trackers import Tracker

VALIDATION_SEED = 0  # the same windows for every run on the same data


@dataclass(frozen=True)
class PretrainingProgress:
    """The progress of a run, for a display."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float

    @property
    def text(self) -> str:
        """Step, loss, speed and the time left."""
        speed = f"{self.tokens_per_second:,.0f} tokens/s"
        minutes, seconds = divmod(round(self.seconds_left), 60)
        left = f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"
        return f"step {self.step}/{self.steps}, loss {self.loss:.4f}, {speed}, {left}"


def pretrain(
    config: PretrainingConfig,
    folder: Path,
    *,
    trackers: Sequence[Tracker] = (),
    on_progress: Callable[[PretrainingProgress], None] = lambda progress: None,
) -> PretrainingRun:
    """Train a language model into a folder; continue a run that the folder holds already.

    With the same number of processes and threads on the same machine, a run that was killed at any
    moment and continued ends with the same weights bit for bit. With other numbers of processes or
    other micro batches a step is the same except for rounding.

    Args:
        config: The model, the data and how it is trained.
        folder: A folder that does not exist yet, or that of a run with this configuration.
        trackers: Receive every row of metrics.
        on_progress: Called after every step, in the first process.

    Returns:
        The run; `model_folder` has the trained model.

    Raises:
        UserError: The data have another fingerprint than the configuration says or are corrupt, the
            batch cannot be shared among the processes, or the folder holds something else.
    """
    processes = Processes(config.shard, config.device)
    data = _Data(config, processes)
    data.verify()
    folder = Path(folder)
    run = PretrainingRun(folder, config)
    exists = (folder / "config.json").is_file()
    if exists:
        PretrainingRun.open(folder).check_same(config)
    else:
        check_new(folder)
    if processes.device.type == "cpu":
        micro = config.batch_size // processes.count // data.accumulation
        check_training_memory(config.model, micro, config.context_length, config.backward_chunk)
    processes.wait()  # before the first process writes to the folder, all must have read it
    with sole_writer(folder) if processes.main else nullcontext():
        if processes.main:
            run.tidy()
            run.write_config()
        processes.wait()
        start = processes.agreed((run.checkpoint_steps() or [0])[-1])
        if processes.main:
            run.rewind_metrics(start)
        if start < config.steps:
            _Loop(run, data, processes, start, trackers, on_progress).run_through()
    return run


class _Data:
    """The batches of a run, and the share of each process."""

    def __init__(self, config: PretrainingConfig, processes: Processes) -> None:
        self.train, self.validation = (
            TokenData.open(config.data_folder, split) for split in ("train", "validation")
        )
        if self.train.fingerprint != config.data_fingerprint:
            raise UserError(f"{config.data_folder} has changed since the run began")
        if self.train.vocab_size != config.model.vocab_size:
            has = f"{config.data_folder} has {self.train.vocab_size:,} tokens"
            raise UserError(f"{has}, but the model's vocab_size is {config.model.vocab_size:,}")
        self.accumulation = config.accumulation(processes.count)
        self.rank, self.count = processes.rank, processes.count
        sizes = config.context_length, config.batch_size
        apart = config.keep_documents_apart
        self.batches = PackedBatches(self.train, *sizes, config.seed, apart)
        self.held_out = PackedBatches(self.validation, *sizes, VALIDATION_SEED, apart)
        self.validations = min(config.validation_batches, self.held_out.steps_per_epoch)

    def verify(self) -> None:
        """Raise a UserError if a file of the data folder has changed since it was written.

        Each process reads its share of the files.
        """
        for tokens in (self.train, self.validation):
            tokens.verify(self.rank, self.count)

    def micro_batches(self, batches: PackedBatches, step: int) -> list[PackedBatch]:
        """Return this process's micro batches, as if each had a process of its own."""
        ranks = [self.rank + micro * self.count for micro in range(self.accumulation)]
        return [batches.batch(step, rank, self.accumulation * self.count) for rank in ranks]


class _Loop:
    def __init__(
        self,
        run: PretrainingRun,
        data: _Data,
        processes: Processes,
        start: int,
        trackers: Sequence[Tracker],
        on_progress: Callable[[PretrainingProgress], None],
    ) -> None:
        self.run, self.config, self.data, self.processes = run, run.config, data, processes
        self.start, self.on_progress = start, on_progress
        self.trackers = trackers if processes.main else ()
        self.training = self.config.training()
        torch.manual_seed(self.config.seed)
        with on_cpu():  # the same initial weights on every device
            self.model = SequenceModel(self.config.model)
        if processes.main and not run.metrics():
            count, first = self.model.num_parameters(), digest(self.model)
            run.log({"step": 0, "kind": "start", "parameters": count, "weights_sha256": first})
        if self.config.compile:
            compile_blocks(self.model)
        processes.place(self.model)
        self.optimizer = make_optimizer(self.model, self.training)
        if start:
            run.load(start, self.model, self.optimizer, processes)
        self.wrapped = processes.wrap(self.model)
        self.objective = Objective(self.config, processes, self.wrapped)
        self.batches = Prefetched(partial(self.micro_batches, data.batches), processes.device)
        self.clock = Clock(run)
        self.tokenizer: PreTrainedTokenizerBase | None = None  # of the data, for prompts

    def run_through(self) -> None:
        for tracker in self.trackers:
            tracker.on_start(self.run)
        try:
            self.steps()
        finally:
            for tracker in self.trackers:
                tracker.on_end(self.run)

    def steps(self) -> None:
        config, losses = self.config, list[Tensor]()
        loss = norm = math.nan
        for step in range(self.start, config.steps):
            measured = self.step(step)
            losses.append(measured[0])
            done, last = step + 1, step + 1 == config.steps
            if not last:
                self.batches.prefetch(done)
            logged = done % config.log_every == 0 or last
            # reading a number waits for the device: at every step it would leave a GPU without work
            if logged or step == self.start or self.processes.device.type == "cpu":
                loss, norm = map(float, measured)
                if not math.isfinite(loss + norm):
                    raise DivergedError(f"the loss is {loss} at step {done}{self.last_good()}")
            if logged:
                mean = sum(map(float, losses)) / len(losses)
                losses.clear()
                row = {"loss": mean, "gradient_norm": norm, "lr": self.learning_rate(step)}
                tokens = done * config.tokens_per_step
                self.log({"step": done, "kind": "train", "tokens": tokens, **row})
            if (config.validation_every and done % config.validation_every == 0) or last:
                self.validate(done)
            if done % config.checkpoint_every == 0 or last:
                self.save(done)
            if self.processes.main:
                seconds = self.clock.process_seconds()
                left = seconds / (done - self.start) * (config.steps - done)
                speed = (done - self.start) * config.tokens_per_step / seconds
                self.on_progress(PretrainingProgress(done, config.steps, loss, speed, left))

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """Take an optimiser step; return the loss of its batch and the gradient's norm.

        They stay on the device: reading them waits for it.
        """
        config, accumulation = self.config, self.data.accumulation
        torch.manual_seed(_random_seed(config.seed, step, self.processes.rank))
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.processes.device)
        for micro, batch in enumerate(self.batches.batch(step), 1):
            total += self.objective.backward(batch, accumulation, average=micro == accumulation)
        limit = math.inf if config.clip is None else config.clip
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return self.processes.mean(total), norm.detach()

    def micro_batches(self, batches: PackedBatches, step: int) -> list[MicroBatch]:
        """Return this process's micro batches of a step, on the device."""
        return [self.objective.to_device(batch) for batch in self.data.micro_batches(batches, step)]

    def learning_rate(self, step: int) -> float:
        return learning_rate(self.training, step)

    @torch.no_grad()
    def validate(self, step: int) -> None:
        """Log the loss on held-out windows, and continue the prompts."""
        self.wrapped.eval()
        batches, total = self.data.validations, torch.zeros((), device=self.processes.device)
        for number in range(batches):
            for batch in self.micro_batches(self.data.held_out, number):
                total += self.objective.loss(batch)
        loss = float(self.processes.mean(total / (batches * self.data.accumulation)))
        tokens = batches * self.config.tokens_per_step
        self.log({"step": step, "kind": "validation", "loss": loss, "tokens": tokens})
        if self.config.sample_prompts and (model := self.whole_model()) is not None:
            self.continue_prompts(step, model.eval())
        self.wrapped.train()

    def continue_prompts(self, step: int, model: StateTrackForCausalLM) -> None:
        """Log a continuation of each prompt, with random numbers of its own at each step."""
        if self.tokenizer is None:
            self.tokenizer = pretrained_tokenizer(self.data.train.folder, model)
        language = LanguageModel(model, self.tokenizer, "the model", None)
        for number, prompt in enumerate(self.config.sample_prompts):
            seed = _random_seed(self.config.seed, step, number) % MAX_WHOLE
            made = continue_text(language, prompt, tokens=self.config.sample_tokens, seed=seed)
            self.log({"step": step, "kind": "sample", "prompt": prompt, "text": made.text})

    def log(self, row: dict[str, Any]) -> None:
        if self.processes.main:
            row = {**row, **self.clock.times()}
            self.run.log(row)
            for tracker in self.trackers:
                tracker.on_row(self.run, row)

    def save(self, step: int) -> None:
        """Write the model, then the checkpoint, so that a finished run always has its model."""
        for name, parameter in self.model.named_parameters():
            if not whole(parameter.detach().isfinite().all()):
                raise DivergedError(f"{name} is not finite after step {step}{self.last_good()}")
        model = self.whole_model()
        if model is not None:
            self.run.save_model(model, self.data.train.tokenizer_file)
        self.run.save(step, self.model, self.optimizer, self.processes)

    def last_good(self) -> str:
        good = self.run.checkpoint_steps()
        where = self.run.checkpoint_folder(good[-1]) if good else "none was written yet"
        return f"; last good checkpoint: {where}"

    def whole_model(self) -> StateTrackForCausalLM | None:
        """Return the model as one of transformers in the first process; else None.

        It shares the weights, unless they are sharded; then all processes must call it.
        """
        model = self.model
        if self.processes.sharded:
            weights = {}
            for name, parameter in self.model.named_parameters():
                weight = whole(parameter)
                if self.processes.main:  # elsewhere memory need not hold them all
                    weights[f"model.{name}"] = weight
            if self.processes.main:
                model = SequenceModel(self.config.model)
                restore_tensors(weights, model, self.run.folder)
        if not self.processes.main:
            return None
        about = self.data.train.description
        return StateTrackForCausalLM.from_sequence_model(
            model,
            training_length=self.config.context_length,
            eos_token_id=about.eos,
            bos_token_id=about.bos_id if about.bos else None,
        )


def digest(model: SequenceModel) -> str:
    """Return the SHA-256 of a model's weights and their names."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        found.update(name.encode())
        found.update(parameter.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def _random_seed(seed: int, step: int, number: int) -> int:
    """Return a seed of a run for a step, and the number of a process or of a prompt."""
    return int(np.random.SeedSequence([seed, step, number]).generate_state(1, np.uint64)[0] >> 1)
