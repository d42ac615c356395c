"""GLA of flash-linear-attention: where its tensors end up; tests/peers compares the numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statetrack import UserError
from statetrack.models.convert import convert
from statetrack.testing.inputs import draw

VOCABULARY, WIDTH, MLP = 7, 12, 20
CONFIG = {
    "model_type": "gla", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 1,
    "num_heads": 2, "intermediate_size": MLP, "norm_eps": 1e-4,
}  # fmt: skip


def state(norm: str) -> dict[str, Tensor]:
    """Random tensors under the names and in the shapes of fla's `GLAForCausalLM`."""
    normal = draw(0)
    layer = {
        **{f"{name}_proj.weight": normal(6, WIDTH) for name in "qk"},
        **{f"{name}_proj.weight": normal(WIDTH, WIDTH) for name in "vgo"},
        "gk_proj.0.weight": normal(16, WIDTH), "gk_proj.1.weight": normal(6, 16),
        "gk_proj.1.bias": normal(6), norm: normal(6),
    }  # fmt: skip
    mlp = {name: normal(MLP, WIDTH) for name in ("gate_proj.weight", "up_proj.weight")}
    return {
        "model.embeddings.weight": normal(VOCABULARY, WIDTH),
        **{f"model.layers.0.{part}_norm.weight": normal(WIDTH) for part in ("attn", "mlp")},
        **{f"model.layers.0.attn.{name}": tensor for name, tensor in layer.items()},
        **{f"model.layers.0.mlp.{name}": tensor for name, tensor in mlp.items()},
        "model.layers.0.mlp.down_proj.weight": normal(WIDTH, MLP),
        "model.norm.weight": normal(WIDTH),
        "lm_head.weight": normal(VOCABULARY, WIDTH),
    }


@pytest.mark.parametrize("norm", ["g_norm_swish_gate.weight", "g_norm.weight"])
def test_tensors_and_options(norm: str) -> None:
    theirs = state(norm)
    model = convert(CONFIG, theirs)
    (mixer,) = model.config.mixers
    assert (mixer.num_heads, mixer.conv_size, mixer.output_norm_eps) == (2, 0, 1e-4)
    assert (mixer.gate_logit_normalizer, mixer.gate_low_rank_dim) == (16, 16)
    ours = model.blocks[0].mixer.state_dict()
    for name, other in (
        ("decay_proj.1.bias", "gk_proj.1.bias"),
        ("gate_proj.weight", "g_proj.weight"),
        ("norm.weight", norm),
    ):
        assert torch.equal(ours[name], theirs[f"model.layers.0.attn.{other}"])


def test_the_range() -> None:
    model = convert(CONFIG, state("g_norm.weight"), allow_neg_eigval=True)
    assert model.config.mixers[0].allow_neg_eigval


def test_shared_keys_are_refused() -> None:
    with pytest.raises(UserError, match="num_kv_heads must be None or 2; got 1"):
        convert({**CONFIG, "num_kv_heads": 1}, state("g_norm.weight"))


def test_parts_that_do_not_belong_together():
    theirs = {**state("g_norm.weight"), "model.layers.0.attn.k_proj.weight": torch.ones(6, 5)}
    with pytest.raises(UserError, match=r"belong together of the sizes \[\[6, 12\], \[6, 5\]"):
        convert(CONFIG, theirs)
