"""Where each weight of another package's layer ends up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statetrack.layers import DeltaProduct, GatedDeltaNet
from statetrack.models.convert.gated_delta_net import delta_rule_mixer, qwen3_next_mixer
from statetrack.testing.inputs import draw

WIDTH, K, V = 10, 3, 4


def fla_state(heads: int, value_heads: int, n: int = 1, conv: int = 4) -> dict[str, Tensor]:
    """Random tensors under the names and in the shapes of fla's GatedDeltaProduct."""
    normal = draw(0)
    keys, values = heads * K, value_heads * V
    sizes = {"q": keys, "k": n * keys, "v": n * values, "g": values, "b": n * value_heads}
    state = {f"{name}_proj.weight": normal(size, WIDTH) for name, size in sizes.items()}
    if conv:
        state |= {f"{name}_conv1d.weight": normal(sizes[name], 1, conv) for name in "qkv"}
    state |= {"o_norm.weight": normal(V), "o_proj.weight": normal(WIDTH, values)}
    gate = {"A_log": normal(value_heads), "dt_bias": normal(value_heads)}
    return state | gate | {"a_proj.weight": normal(value_heads, WIDTH)}


def test_gated_delta_net():
    state = fla_state(2, 4)
    ours = delta_rule_mixer(state)
    layer = GatedDeltaNet(WIDTH, num_heads=2, num_v_heads=4, expand_k=0.6, expand_v=1.6)
    layer.load_state_dict(ours)  # all of them, in their shapes
    assert torch.equal(ours["qkv_proj.weight"][6:12], state["k_proj.weight"])
    assert torch.equal(ours["conv.weight"][12:], state["v_conv1d.weight"][:, 0])
    assert torch.equal(ours["beta.proj.weight"], state["b_proj.weight"])


@pytest.mark.parametrize("conv", [4, 0])
def test_delta_product(conv):
    state = fla_state(2, 2, n=3, conv=conv)
    for name in ("A_log", "dt_bias", "a_proj.weight"):
        del state[name]
    layer = DeltaProduct(
        WIDTH, num_heads=2, expand_k=0.6, expand_v=0.8, output_gate=True, num_householder=3,
        conv_size=conv,
    )  # fmt: skip
    layer.load_state_dict(delta_rule_mixer(state))


def test_delta_net_without_an_output_gate():
    state = fla_state(2, 2)
    for name in ("A_log", "dt_bias", "a_proj.weight", "g_proj.weight"):
        del state[name]
    assert delta_rule_mixer(state).keys() == {
        *("qkv_proj.weight", "conv.weight", "beta.proj.weight", "norm.weight", "o_proj.weight")
    }


def test_qwen3_next_goes_head_by_head():
    """Its rows are, for each key head: q, k, its value heads' v, their z; and their b, their a."""
    normal = draw(0)
    heads, shared = 2, 3
    q, k = normal(heads, K, WIDTH), normal(heads, K, WIDTH)
    v, z = normal(heads, shared * V, WIDTH), normal(heads, shared * V, WIDTH)
    b, a = normal(heads, shared, WIDTH), normal(heads, shared, WIDTH)
    channels = heads * (2 * K + shared * V)
    state = {
        "in_proj_qkvz.weight": torch.cat(
            [torch.cat(rows) for rows in zip(q, k, v, z, strict=True)]
        ),
        "in_proj_ba.weight": torch.cat([torch.cat(rows) for rows in zip(b, a, strict=True)]),
        "conv1d.weight": normal(channels, 1, 4),
        "A_log": normal(heads * shared),
        "dt_bias": normal(heads * shared),
        "norm.weight": normal(V),
        "out_proj.weight": normal(WIDTH, heads * shared * V),
    }
    ours = qwen3_next_mixer(state, num_heads=heads)
    layer = GatedDeltaNet(WIDTH, num_heads=2, num_v_heads=6, expand_k=0.6, expand_v=2.4)
    layer.load_state_dict(ours)
    assert torch.equal(ours["qkv_proj.weight"], torch.cat([*q, *k, *v]))
    assert torch.equal(ours["g_proj.weight"], torch.cat([*z]))
    assert torch.equal(ours["beta.proj.weight"], torch.cat([*b]))
    assert torch.equal(ours["a_proj.weight"], torch.cat([*a]))
