"""Small models of transformers with random weights, large enough to tell mistakes from rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.peers.common import random_weights

transformers.logging.set_verbosity_error()  # that there are no GPU kernels

VOCABULARY = 31
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def mamba(**options: Any) -> Any:
    chosen: dict[str, Any] = {
        "hidden_size": 24, "state_size": 5, "num_hidden_layers": 2, "time_step_rank": 3,
    } | options  # fmt: skip
    config = transformers.MambaConfig(**TOKENS, **chosen)
    return random_weights(transformers.MambaForCausalLM(config))


def mamba2(**options: Any) -> Any:
    chosen: dict[str, Any] = {
        "hidden_size": 24, "state_size": 5, "num_hidden_layers": 2, "num_heads": 6, "head_dim": 8,
        "n_groups": 2, "chunk_size": 8,
    } | options  # fmt: skip
    config = transformers.Mamba2Config(**TOKENS, **chosen)
    return random_weights(transformers.Mamba2ForCausalLM(config))


def olmo_hybrid(**options: Any) -> Any:
    chosen: dict[str, Any] = {
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 4, "linear_key_head_dim": 5, "linear_value_head_dim": 10,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    } | options  # fmt: skip
    config = transformers.OlmoHybridConfig(**TOKENS, **chosen)
    return random_weights(transformers.OlmoHybridForCausalLM(config))


QWEN: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 5, "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip


def qwen3_next(**options: Any) -> Any:
    chosen = QWEN | {
        "intermediate_size": 40, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    } | options  # fmt: skip
    config = transformers.Qwen3NextConfig(**TOKENS, **chosen)
    return random_weights(transformers.Qwen3NextForCausalLM(config))


def qwen3_5(**options: Any) -> Any:
    """The text model of Qwen3.5."""
    chosen = QWEN | {"intermediate_size": 40} | options
    config = transformers.Qwen3_5TextConfig(**TOKENS, **chosen)
    return random_weights(transformers.Qwen3_5ForCausalLM(config))


def qwen3_5_moe(**options: Any) -> Any:
    """The text model of a Qwen3.5 with experts."""
    chosen = QWEN | {
        "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 12,
    } | options  # fmt: skip
    config = transformers.Qwen3_5MoeTextConfig(**TOKENS, **chosen)
    return random_weights(transformers.Qwen3_5MoeForCausalLM(config))


def qwen3_5_images(**options: Any) -> Any:
    """A Qwen3.5 with its encoder of images, which a text does not use."""
    text = qwen3_5(**options).config.to_dict()
    vision = {
        "depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "patch_size": 2,
        "out_hidden_size": text["hidden_size"], "num_position_embeddings": 4,
    }  # fmt: skip
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision)
    return random_weights(transformers.Qwen3_5ForConditionalGeneration(config))


MODELS: dict[str, Callable[..., Any]] = {
    "mamba": mamba, "mamba2": mamba2, "olmo_hybrid": olmo_hybrid, "qwen3_next": qwen3_next,
    "qwen3_5": qwen3_5, "qwen3_5_moe": qwen3_5_moe,
}  # fmt: skip
"""Those with layers that `use_native_kernels` knows."""


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (batch, length), generator=generator)
