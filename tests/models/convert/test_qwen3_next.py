"""Qwen3-Next and Qwen3.5: where tensors end up and what is refused; tests/peers has the logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.models.convert import convert
from statetrack.models.convert.restore import restore
from statetrack.testing.inputs import draw

WIDTH, HEADS, D = 12, 2, 4
CONFIG = {
    "model_type": "qwen3_5_text", "vocab_size": 7, "hidden_size": WIDTH, "intermediate_size": 6,
    "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": D,
    "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 3,
    "linear_value_head_dim": 2, "full_attention_interval": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50, "partial_rotary_factor": 0.5},
}  # fmt: skip
NEXT = {**CONFIG, "model_type": "qwen3_next", "num_experts": 0}


def state(kind: str = "qwen3_5_text") -> dict[str, Tensor]:
    """Random tensors under the names and in the shapes of transformers, in bfloat16."""
    normal = draw(0)
    linear = {
        "A_log": normal(2), "dt_bias": normal(2), "norm.weight": normal(2),
        "conv1d.weight": normal(10, 1, 4), "out_proj.weight": normal(WIDTH, 4),
    }  # fmt: skip
    if kind == "qwen3_next":
        linear |= {"in_proj_qkvz.weight": normal(14, WIDTH), "in_proj_ba.weight": normal(4, WIDTH)}
    else:
        linear |= {"in_proj_qkv.weight": normal(10, WIDTH), "in_proj_z.weight": normal(4, WIDTH)}
        linear |= {f"in_proj_{name}.weight": normal(2, WIDTH) for name in "ab"}
    full = {
        "q_proj.weight": normal(2 * HEADS * D, WIDTH), "k_proj.weight": normal(D, WIDTH),
        "v_proj.weight": normal(D, WIDTH), "o_proj.weight": normal(WIDTH, HEADS * D),
        "q_norm.weight": normal(D), "k_norm.weight": normal(D),
    }  # fmt: skip
    out = {"model.embed_tokens.weight": normal(7, WIDTH), "model.norm.weight": normal(WIDTH)}
    out["lm_head.weight"] = normal(7, WIDTH)
    for layer, (name, mixer) in enumerate((("linear_attn", linear), ("self_attn", full))):
        block = {f"{name}.{part}": tensor for part, tensor in mixer.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            block[f"{norm}.weight"] = normal(WIDTH)
        block |= {f"mlp.{part}_proj.weight": normal(6, WIDTH) for part in ("gate", "up")}
        block["mlp.down_proj.weight"] = normal(WIDTH, 6)
        out |= {f"model.layers.{layer}.{part}": tensor for part, tensor in block.items()}
    return {name: tensor.bfloat16() for name, tensor in out.items()}


def test_tensors_and_options() -> None:
    theirs = state()
    model = convert(CONFIG, theirs)
    delta_net, attention = model.config.mixers
    assert (delta_net.name, attention.name) == ("gated_delta_net", "attention")
    assert (attention.rope_base, attention.rope_fraction, attention.head_dim) == (50, 0.5, D)
    ours = model.blocks[1].mixer.state_dict()
    rows = theirs["model.layers.1.self_attn.q_proj.weight"].float().split(D)
    assert torch.equal(ours["qkv_proj.weight"][: HEADS * D], torch.cat(rows[::2]))
    assert torch.equal(ours["g_proj.weight"], torch.cat(rows[1::2]))
    gains = theirs["model.layers.1.self_attn.k_norm.weight"].float() + 1
    assert torch.equal(ours["k_norm.weight"], gains)
    z = theirs["model.layers.0.linear_attn.in_proj_z.weight"].float()
    assert torch.equal(model.blocks[0].mixer.g_proj.weight, z)


@pytest.mark.parametrize("config", [CONFIG, NEXT], ids=lambda config: config["model_type"])
def test_written_back(config: dict[str, Any]) -> None:
    theirs = state(config["model_type"])
    written, tensors = restore(convert(config, theirs), config, theirs)
    assert written == config
    assert tensors.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(tensors[name], tensor), name


def test_options_of_older_files() -> None:
    config = {k: v for k, v in CONFIG.items() if k != "rope_parameters"}
    config |= {"rope_theta": 50, "partial_rotary_factor": 0.5, "rope_scaling": None}
    assert convert(config, state()).config == convert(CONFIG, state()).config


@pytest.mark.parametrize(
    ("config", "changed", "says"),
    [
        (NEXT, {"num_experts": 4}, r"the checkpoint has 4 experts \(num_experts\)"),
        (NEXT, {"num_experts": 4, "mlp_only_layers": [0]}, "the checkpoint has 4 experts"),
        (CONFIG, {"num_experts": 4}, "options without a meaning here: num_experts"),
        (CONFIG, {"layer_types": ["conv", "conv"]}, "layer_types must be one of linear_attention"),
        (CONFIG, {"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be one of default"),
        (CONFIG, {"rope_parameters": {"factor": 2.0}}, "rope_parameters may have .*got"),
        (CONFIG, {"attention_bias": True}, "attention_bias must be False"),
        (CONFIG, {"model_type": "qwen3_5"}, "unknown model_type 'qwen3_5'"),
    ],
)
def test_what_cannot_be_expressed(config: Any, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        convert({**config, **changed}, state(config["model_type"]))


def test_a_query_projection_of_another_size() -> None:
    theirs = state()
    name = "model.layers.1.self_attn.q_proj.weight"
    theirs[name] = theirs[name][:-1]
    with pytest.raises(UserError, match="q_proj has 15 rows, not a multiple of 8"):
        convert(CONFIG, theirs)
