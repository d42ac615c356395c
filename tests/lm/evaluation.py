"""Small checkpoints, tokenizers and data folders for the tests of evaluation."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from statetrack.lm.data import write_tokens
from statetrack.lm.data.tokenizer import train_tokenizer
from statetrack.lm.load import LanguageModel

TEXT = """
def parity(bits):
    total = 0
    for bit in bits:
        total ^= bit
    return total
"""
TEXTS = [TEXT.replace("total", name) * 12 for name in ("state", "swap", "sum", "x", "answer")]
VOCAB = 300

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2}
TOKENS: dict[str, Any] = {"vocab_size": VOCAB, "pad_token_id": 0, "eos_token_id": 0}
LINEAR: dict[str, Any] = {
    "num_attention_heads": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
EXPERTS: dict[str, int] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip


def hf_model(name: str) -> PreTrainedModel:
    """Make a tiny model of transformers with fixed weights larger than at initialisation."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()  # that there are no GPU kernels
    t = transformers
    match name:
        case "mamba":
            model = t.MambaForCausalLM(t.MambaConfig(**TOKENS, **SMALL))
        case "mamba2":
            sizes = {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8}
            model = t.Mamba2ForCausalLM(t.Mamba2Config(**TOKENS, **SMALL, **sizes, chunk_size=16))
        case "olmo_hybrid":
            config = t.OlmoHybridConfig(**TOKENS, **SMALL, **LINEAR, intermediate_size=64)
            model = t.OlmoHybridForCausalLM(config)
        case "qwen3_next":
            sizes = {"num_key_value_heads": 2, "head_dim": 8, **EXPERTS}
            config = t.Qwen3NextConfig(**TOKENS, **SMALL, **LINEAR, **sizes)
            model = t.Qwen3NextForCausalLM(config)
        case "qwen3_5":
            sizes = {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64}
            model = t.Qwen3_5ForCausalLM(t.Qwen3_5TextConfig(**TOKENS, **SMALL, **LINEAR, **sizes))
        case "qwen3_5_moe":
            sizes = {"num_key_value_heads": 2, "head_dim": 8, **EXPERTS}
            config = t.Qwen3_5MoeTextConfig(**TOKENS, **SMALL, **LINEAR, **sizes)
            model = t.Qwen3_5MoeForCausalLM(config)
        case "llama":
            config = t.LlamaConfig(**TOKENS, **SMALL, num_attention_heads=4, intermediate_size=64)
            model = t.LlamaForCausalLM(config)
        case "gpt2":
            config = t.GPT2Config(
                vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, eos_token_id=0
            )
            model = t.GPT2LMHeadModel(config)
        case "gpt1":  # without a cache
            config = t.OpenAIGPTConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4)
            model = t.OpenAIGPTLMHeadModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(3)
    return model.eval()


@cache
def tokenizer() -> Tokenizer:
    """Train a BPE on some code."""
    return Tokenizer.from_str(train_tokenizer(TEXTS, VOCAB).to_json())


def language(model: PreTrainedModel, name: str = "model", length: int | None = 16) -> LanguageModel:
    """Give a model the tokenizer."""
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer().to_str()))
    return LanguageModel(model, fast, name, length)


def checkpoint(model: PreTrainedModel, folder: Path) -> Path:
    """Write a model and the tokenizer."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer().to_str())
    return folder


def data_folder(folder: Path, made_with: Tokenizer | None = None, *, bos: bool = False) -> Path:
    """Write a data folder of some code."""
    made_with = made_with or tokenizer()
    documents = [made_with.encode(text, add_special_tokens=False).ids for text in TEXTS]
    write_tokens(
        folder,
        {"train": documents[:1], "validation": documents},
        vocab_size=made_with.get_vocab_size(),
        eos=0,
        bos_id=1,
        bos=bos,
        tokenizer=made_with.to_str(),
    )
    return folder
