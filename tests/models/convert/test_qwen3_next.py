"""Qwen3-Next and Qwen3.5: where tensors end up and what is refused; tests/peers has the logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.models import ExpertsConfig
from statetrack.models.block import GatedMLP
from statetrack.models.convert import convert
from statetrack.models.convert.restore import restore
from statetrack.models.experts import Experts
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
EXPERTS = {
    "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 5,
    "shared_expert_intermediate_size": 4, "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}  # fmt: skip
ALL_EXPERTS = {**NEXT, **EXPERTS}
FIRST_DENSE = {**NEXT, **EXPERTS, "mlp_only_layers": [0], "norm_topk_prob": False}
MOE = {name: value for name, value in CONFIG.items() if name != "intermediate_size"}
MOE |= {"model_type": "qwen3_5_moe_text", **EXPERTS}


def experts_state(stacked: bool) -> dict[str, Tensor]:
    """The tensors of a layer's experts, as in transformers' modules, or as in its files."""
    normal = draw(1)
    out = {"gate.weight": normal(3, WIDTH), "shared_expert_gate.weight": normal(1, WIDTH)}
    out |= {f"shared_expert.{part}_proj.weight": normal(4, WIDTH) for part in ("gate", "up")}
    out["shared_expert.down_proj.weight"] = normal(WIDTH, 4)
    gate_up, down = normal(3, 10, WIDTH), normal(3, WIDTH, 5)
    if stacked:
        return out | {"experts.gate_up_proj": gate_up, "experts.down_proj": down}
    for n in range(3):
        each = {"gate": gate_up[n, :5], "up": gate_up[n, 5:], "down": down[n]}
        out |= {f"experts.{n}.{part}_proj.weight": weight for part, weight in each.items()}
    return out


def checkpoint(config: dict[str, Any], stacked: bool = True) -> dict[str, Tensor]:
    """The tensors of a checkpoint with these options; in every layer the experts are the same."""
    out = state("qwen3_next" if config["model_type"] == "qwen3_next" else "qwen3_5_text")
    if not config.get("num_experts"):
        return out
    for layer in {0, 1} - set(config.get("mlp_only_layers", ())):
        prefix = f"model.layers.{layer}.mlp."
        out = {name: tensor for name, tensor in out.items() if not name.startswith(prefix)}
        own = experts_state(stacked)
        out |= {prefix + name: tensor.bfloat16() for name, tensor in own.items()}
    return out


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


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
@pytest.mark.parametrize("config", [ALL_EXPERTS, FIRST_DENSE, MOE], ids=["all", "second", "moe"])
def test_experts(config: dict[str, Any], stacked: bool) -> None:
    model = convert(config, checkpoint(config, stacked))
    assert model.config.experts == ExpertsConfig(
        3, 2, 5, 4, config.get("norm_topk_prob", True), (1,) if config is FIRST_DENSE else None
    )
    assert type(model.blocks[0].mlp) is (GatedMLP if config is FIRST_DENSE else Experts)
    ours = model.blocks[1].mlp
    for n in range(3):
        theirs = {
            name: tensor.bfloat16().float()
            for name, tensor in experts_state(stacked=False).items()
            if name.startswith(f"experts.{n}.")
        }
        gate_up = [theirs[f"experts.{n}.{part}_proj.weight"] for part in ("gate", "up")]
        assert torch.equal(ours.gate_up[n], torch.cat(gate_up))
        assert torch.equal(ours.down[n], theirs[f"experts.{n}.down_proj.weight"])


def test_experts_in_every_second_layer() -> None:
    config = {**ALL_EXPERTS, "decoder_sparse_step": 2}
    experts = convert(config, checkpoint(FIRST_DENSE)).config.experts
    assert experts is not None
    assert experts.layers == (1,)
    with pytest.raises(UserError, match=r"no tensor model\.layers\.0\.mlp\.gate_proj\.weight"):
        convert(config, checkpoint(ALL_EXPERTS))


WRITTEN = {
    "qwen3_5": (CONFIG, True), "qwen3_next": (NEXT, True), "stacked": (ALL_EXPERTS, True),
    "one by one": (ALL_EXPERTS, False), "second": (FIRST_DENSE, False), "moe": (MOE, True),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_written_back(name: str) -> None:
    config, stacked = WRITTEN[name]
    theirs = checkpoint(config, stacked)
    written, tensors = restore(convert(config, theirs), config, theirs)
    assert written == config
    assert tensors.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(tensors[name], tensor), name


def test_experts_that_were_trained_since() -> None:
    theirs = checkpoint(ALL_EXPERTS, stacked=False)
    model = convert(ALL_EXPERTS, theirs)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randint(-8, 8, weight.shape))  # which bfloat16 represents
    again = convert(ALL_EXPERTS, restore(model, ALL_EXPERTS, theirs)[1])
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name


def test_the_prediction_of_several_tokens_is_kept_as_it_is() -> None:
    theirs = checkpoint(ALL_EXPERTS)
    more = {**theirs, "mtp.fc.weight": torch.ones(2, 3)}
    config = {**ALL_EXPERTS, "use_sliding_window": False}
    written = restore(convert(config, more), config, more)[1]
    assert written["mtp.fc.weight"] is more["mtp.fc.weight"]
    assert written.keys() == more.keys()
    with pytest.raises(UserError, match=r"tensors without a place here: mtpx"):
        convert(config, {**theirs, "mtpx": torch.ones(2)})


@pytest.mark.parametrize("text", [CONFIG, MOE], ids=["mlps", "experts"])
def test_the_encoder_of_images_is_kept_as_it_is(text: dict[str, Any]) -> None:
    inner = checkpoint(text)
    theirs = {
        name.replace("model.", "model.language_model.", 1): tensor for name, tensor in inner.items()
    }
    theirs["model.visual.merger.weight"] = torch.ones(2, 3)
    config = {
        "model_type": text["model_type"].removesuffix("_text"), "image_token_id": 1,
        "text_config": {**text, "tie_word_embeddings": True}, "vision_config": {"depth": 1},
        "tie_word_embeddings": False,
    }  # fmt: skip
    model, expected = convert(config, theirs), convert(text, inner)
    assert model.config == expected.config
    for name, weight in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    written, tensors = restore(model, config, theirs)
    assert written == config
    assert tensors.keys() == theirs.keys()
    assert all(torch.equal(tensors[name], theirs[name]) for name in theirs)


def test_options_of_older_files() -> None:
    config = {k: v for k, v in CONFIG.items() if k != "rope_parameters"}
    config |= {"rope_theta": 50, "partial_rotary_factor": 0.5, "rope_scaling": None}
    assert convert(config, state()).config == convert(CONFIG, state()).config


@pytest.mark.parametrize(
    ("config", "changed", "says"),
    [
        (NEXT, {"num_experts": 12}, r"no tensor model\.layers\.0\.mlp\.experts\.0\.gate_proj"),
        (NEXT, {"num_experts": -1}, "num_experts must be a whole number above 0"),
        (NEXT, {"mlp_only_layers": 1}, "mlp_only_layers must be a list; got 1"),
        (ALL_EXPERTS, {"num_experts": 4}, r"mlp.down would be \[3, 12, 5\], not \[4, 12, 5\]"),
        (ALL_EXPERTS, {"num_experts_per_tok": 4}, "top_k of the experts .* got 4 of 3"),
        (ALL_EXPERTS, {"norm_topk_prob": "no"}, "norm_topk_prob must be True or False; got 'no'"),
        (ALL_EXPERTS, {"mlp_only_layers": [0]}, r"no tensor model\.layers\.0\.mlp\.gate_proj"),
        (MOE, {"num_experts": 0}, "num_experts must be a whole number above 0"),
        (CONFIG, {"num_experts": 4}, "options without a meaning here: num_experts"),
        (CONFIG, {"layer_types": ["conv", "conv"]}, "layer_types must be one of linear_attention"),
        (CONFIG, {"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be one of default"),
        (CONFIG, {"rope_parameters": {"factor": 2.0}}, "rope_parameters may have .*got"),
        (CONFIG, {"attention_bias": True}, "attention_bias must be False"),
        (CONFIG, {"model_type": "qwen3_6"}, "unknown model_type 'qwen3_6'"),
        (CONFIG, {"model_type": "qwen3_5"}, "text_config must be an object with keys; got None"),
    ],
)
def test_what_cannot_be_expressed(config: Any, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        convert({**config, **changed}, checkpoint(config))


def test_experts_of_unequal_sizes() -> None:
    theirs = checkpoint(ALL_EXPERTS, stacked=False)
    theirs["model.layers.1.mlp.experts.2.down_proj.weight"] = torch.ones(WIDTH, 6)
    with pytest.raises(UserError, match=r"of the sizes \[\[1, 12, 5\], \[1, 12, 6\]\]"):
        convert(ALL_EXPERTS, theirs)


def test_a_query_projection_of_another_size() -> None:
    theirs = state()
    name = "model.layers.1.self_attn.q_proj.weight"
    theirs[name] = theirs[name][:-1]
    with pytest.raises(UserError, match="q_proj has 15 rows, not a multiple of 8"):
        convert(CONFIG, theirs)
