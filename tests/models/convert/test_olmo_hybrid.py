"""OLMo-Hybrid without a recurrence: what has no eigenvalues has no range of them."""

from __future__ import annotations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.models.convert import translate

CONFIG = {
    "model_type": "olmo_hybrid", "vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 6, "layer_types": ["full_attention"],
}  # fmt: skip
SHAPES = {
    "lm_head.weight": (5, 4),
    "model.embed_tokens.weight": (5, 4),
    "model.norm.weight": (4,),
    **{f"model.layers.0.self_attn.{p}_proj.weight": (4, 4) for p in "qkvo"},
    **{f"model.layers.0.self_attn.{p}_norm.weight": (4,) for p in "qk"},
    **{f"model.layers.0.mlp.{p}_proj.weight": (6, 4) for p in ("gate", "up")},
    "model.layers.0.mlp.down_proj.weight": (4, 6),
    **{f"model.layers.0.post_{p}_layernorm.weight": (4,) for p in ("attention", "feedforward")},
}


def test_the_switch_where_there_is_none():
    state = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    for fine in (None, False):
        config, _ = translate(CONFIG, state, allow_neg_eigval=fine)
        assert config.title == "Attention"
    with pytest.raises(UserError, match="no layer has allow_neg_eigval: Attention is all there is"):
        translate(CONFIG, state, allow_neg_eigval=True)
