"""The configuration of a pretraining run: a frozen dataclass, also the format of config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from statetrack.config import (
    DEVICE_HELP,
    check_types,
    from_dict,
    option,
    to_dict,
    within,
)
from statetrack.devices import check_device_name
from statetrack.errors import UserError
from statetrack.models import ModelConfig
from statetrack.plugins import plugins_of
from statetrack.training import TrainingConfig
from statetrack.training.config import COMPILE_HELP, backward_chunk_option, read_versioned

PRETRAINING_SCHEMA = 1  # of config.json, metrics.jsonl and the checkpoints


@dataclass(frozen=True)
class PretrainingConfig:
    """A model, the text that it reads and how it is trained.

    Weight decay acts on matrices other than embeddings; biases, norms and the parameters that a
    layer exempts (A_log, D, dt_bias) do not decay.
    """

    model: ModelConfig = option(ModelConfig(), "the model")  # noqa: RUF009
    data_folder: str = option("", "a data folder of `statetrack lm data`")
    data_fingerprint: str = option("", "SHA-256 of its tokens and tokenizer")
    context_length: int = option(512, "tokens that a sequence predicts", low=1)
    batch_size: int = option(8, "sequences per step, of all processes together", low=1)
    micro_batch_size: int | None = option(
        None, "sequences that a process reads at once; None: its whole share of a batch", low=1
    )
    backward_chunk: int | None = backward_chunk_option()
    keep_documents_apart: bool = option(False, "let no document see another in its sequence")
    steps: int = option(1000, "optimiser steps", low=1)
    lr: float = option(3e-4, "peak learning rate", low=0)
    warmup: int = option(
        250,
        "steps over which the learning rate rises from 0; a preset's is at most a tenth of --steps",
        low=0,
    )
    min_lr: float = option(
        3e-5,
        "learning rate at the end of the cosine; by default --lr times the preset's ratio",
        low=0,
    )
    weight_decay: float = option(0.01, "AdamW's weight decay", low=0)
    betas: tuple[float, float] = option((0.9, 0.95), "AdamW's betas")
    eps: float = option(1e-8, "AdamW's epsilon", low=0)
    clip: float | None = option(1.0, "greatest norm of the gradient; None for no limit")
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16 trains under autocast")
    shard: bool = option(False, "FSDP2: split weights and optimiser among the processes")
    seed: int = option(0, "seed of the initialisation and of the order of the data")
    validation_every: int = option(250, "steps between validations; 0: at the end only", low=0)
    validation_batches: int = option(16, "batches of a validation", low=1)
    sample_prompts: tuple[str, ...] = option((), "texts that the model continues at validations")
    sample_tokens: int = option(64, "tokens of a continuation", low=1)
    log_every: int = option(10, "steps between rows of metrics", low=1)
    checkpoint_every: int = option(250, "steps between checkpoints", low=1)
    keep: int = option(2, "checkpoints that are kept", low=1)
    device: str = option("auto", DEVICE_HELP, identity=False)
    compile: bool = option(False, COMPILE_HELP, identity=False)

    def __post_init__(self) -> None:
        check_types(self)
        check_device_name(self.device)
        if self.checkpoint_every % self.log_every:
            raise UserError(
                f"checkpoint_every must be a multiple of log_every, so that a row of metrics has "
                f"all its steps; got {self.checkpoint_every} and {self.log_every}"
            )
        within("warmup", self.warmup, 0, self.steps)
        self.training()  # checks the values that it takes

    def training(self) -> TrainingConfig:
        """Return optimiser and schedule in the form that `statetrack.training.optim` reads."""
        return TrainingConfig(
            steps=self.steps,
            lr=self.lr,
            warmup=self.warmup / self.steps,
            min_lr=self.min_lr,
            weight_decay=self.weight_decay,
            decay_groups="standard",
            betas=self.betas,
            eps=self.eps,
            clip=self.clip,
            seed=self.seed,
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step predicts."""
        return self.batch_size * self.context_length

    def accumulation(self, processes: int) -> int:
        """Return how many micro batches each process reads per step.

        Raises:
            UserError: the batch cannot be shared equally.
        """
        share, rest = divmod(self.batch_size, processes)
        micro = self.micro_batch_size or share
        if processes == 1 and share % micro:
            raise UserError(f"a batch of {share} cannot be split into micro batches of {micro}")
        if rest or share % micro:
            each = f" in micro batches of {self.micro_batch_size}" if self.micro_batch_size else ""
            raise UserError(
                f"{processes} processes cannot share a batch of {self.batch_size} equally{each}"
            )
        return share // micro

    def to_json(self) -> dict[str, Any]:
        """Return the content of config.json; `plugins` are the modules that it needs, if any."""
        plugins = plugins_of(self.model.pattern)
        extra = {"plugins": plugins} if plugins else {}
        return {"schema": PRETRAINING_SCHEMA, **to_dict(self), **extra}


def read_pretraining_config(path: Path) -> PretrainingConfig:
    """Read the config.json of a pretraining run, or a file in its format."""
    return from_dict(PretrainingConfig, read_versioned(path, PRETRAINING_SCHEMA), str(path))
