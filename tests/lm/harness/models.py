"""Tiny language models and a tokenizer, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from statetrack import DeltaNetConfig, ModelConfig
from statetrack.lm import StateTrackConfig, StateTrackForCausalLM

TEXT = "The robot is now on square a1. The lamp is off. Ann and Bob swap. print(a)  # prints 0"


def train_tokenizer() -> Tokenizer:
    """Train a BPE on bytes, so that every text has tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def make_model(kind: str, vocab_size: int) -> PreTrainedModel:
    """Make a random model whose weights are large enough to tell texts apart."""
    torch.manual_seed(0)
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    model: PreTrainedModel
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 1024}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, **sizes, **ends))
    elif kind == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 2, "max_position_embeddings": 1024}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **sizes, **heads, **ends))
    else:
        mixer = DeltaNetConfig(num_heads=2, allow_neg_eigval=True)
        config = ModelConfig(vocab_size=vocab_size, hidden_size=16, num_layers=2, mixer=mixer)
        model = StateTrackForCausalLM(StateTrackConfig(config, eos_token_id=0))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(3)
    return model


def save_model(kind: str, folder: Path) -> Path:
    """Save a model and its tokenizer."""
    tokenizer = train_tokenizer()
    make_model(kind, tokenizer.get_vocab_size()).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
