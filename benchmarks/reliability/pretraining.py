"""A small pretraining run on made-up text, to be killed and resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.lm.data import TokenData, write_tokens
from statetrack.lm.pretraining.checkpoint import PretrainingRun
from statetrack.lm.pretraining.config import PretrainingConfig
from statetrack.lm.pretraining.loop import pretrain
from statetrack.models import ModelConfig

VOCABULARY = 32
MODEL = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_layers=2,
    mixer=(DeltaNetConfig(num_heads=2), MambaConfig()),
    mlp="none",
)

__all__ = ["PretrainingRun", "go_on", "small_config", "write_data"]


def write_data(folder: Path) -> None:
    """Write a data folder in which the next token is the last one, or one or two more."""
    rng = np.random.default_rng(0)
    steps = rng.integers(0, 3, (60, 100))
    documents = (steps.cumsum(1) % (VOCABULARY - 1)).tolist()
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    write_tokens(
        folder,
        {"train": documents[:40], "validation": documents[40:]},
        vocab_size=VOCABULARY,
        eos=VOCABULARY - 1,
        tokenizer=words.to_str(),
    )


def small_config(data: Path, **options: object) -> PretrainingConfig:
    """A run of some ten milliseconds a step; checkpoints at steps 4, 8 and 10, the last."""
    small = {
        "model": MODEL,
        "context_length": 16,
        "batch_size": 4,
        "micro_batch_size": 2,
        "steps": 10,
        "lr": 1e-2,
        "min_lr": 1e-3,
        "warmup": 1,
        "validation_every": 5,
        "validation_batches": 2,
        "sample_prompts": ("w1 w2",),
        "sample_tokens": 3,
        "log_every": 2,
        "checkpoint_every": 4,
    }
    fingerprint = TokenData.open(data).fingerprint
    whole = {"data_folder": str(data), "data_fingerprint": fingerprint, **small, **options}
    return PretrainingConfig(**whole)  # type: ignore[arg-type]


def go_on(folder: Path) -> None:
    """Start a run, or resume the one that is there; its data are in `data` beside it."""
    pretrain(small_config(folder.parent / "data"), folder)
