"""Small language models for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

from statetrack import AttentionConfig, DeltaNetConfig, ExpertsConfig, MambaConfig, ModelConfig
from statetrack.lm import StateTrackConfig, StateTrackForCausalLM

VOCAB = 23
PLAIN = ModelConfig(
    vocab_size=VOCAB, hidden_size=16, num_layers=2, mixer=DeltaNetConfig(allow_neg_eigval=True)
)
HYBRID = replace(
    PLAIN,
    num_layers=3,
    mixer=(DeltaNetConfig(allow_neg_eigval=True), MambaConfig(), AttentionConfig()),
)


EXPERTS = replace(PLAIN, experts=ExpertsConfig(count=4, size=8, shared_size=8, layers=(1,)))


def causal_model(
    model: ModelConfig = PLAIN, *, tie_embeddings: bool = False, **options: Any
) -> StateTrackForCausalLM:
    """Make a model with fixed weights that are larger than at the start of training."""
    torch.manual_seed(0)
    config = StateTrackConfig(replace(model, tie_embeddings=tie_embeddings), **options)
    causal = StateTrackForCausalLM(config).eval()
    with torch.no_grad():
        for weight in causal.parameters():
            if weight.dim() > 1:
                weight.mul_(3)
    return causal


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of the words <end> (token 1), w0, w2, w3, ..."""
    words = {"<end>" if i == 1 else f"w{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def some_tokens(batch: int = 2, length: int = 8) -> Tensor:
    """Draw fixed tokens [batch, length]."""
    generator = torch.Generator().manual_seed(batch + length)
    return torch.randint(2, VOCAB, (batch, length), generator=generator)


def flip_bit(file: Path) -> None:
    """Change the last byte but one of a file."""
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
