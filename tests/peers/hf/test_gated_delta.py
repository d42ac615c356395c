"""Gated DeltaNet against the layers of Qwen3-Next and OLMo-Hybrid with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from statetrack.layers import GatedDeltaNet
from statetrack.models.convert.gated_delta_net import delta_rule_mixer, qwen3_next_mixer
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_all_close, assert_close
from tests.peers.common import SINGLE, assert_same_gradients

transformers.logging.set_verbosity_error()  # that there are no GPU kernels

WIDTH = 24

HEADS: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
SHARING = pytest.mark.parametrize("value_heads", [2, 6], ids=["own-keys", "shared-keys"])


def values_and_gradients(layer: nn.Module, x: Tensor) -> Tensors:
    """Output, gradient of the input and gradients of the weights by name."""
    x = x.clone().requires_grad_()
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    weights = draw(5)(*y.shape).to(y.dtype)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    dx, *gradients = torch.autograd.grad((weights * y).sum(), [x, *parameters])
    return {"y": y, "x": dx} | dict(zip(names, gradients, strict=True))


def ours(value_heads: int, value_size: int, **options: Any) -> GatedDeltaNet:
    return GatedDeltaNet(
        WIDTH,
        num_heads=2,
        num_v_heads=value_heads,
        expand_k=0.5,
        expand_v=value_heads * value_size / WIDTH,
        **options,
    )


def compare(theirs: Any, layer: GatedDeltaNet, rename: Any) -> None:
    normal = draw(0)
    with torch.no_grad():
        for p in theirs.parameters():
            p += 0.3 * normal(*p.shape).float()
    layer.load_state_dict(rename(theirs.state_dict()))
    x = normal(2, 70, WIDTH).float()
    expected = values_and_gradients(theirs, x)
    got = values_and_gradients(layer, x)
    for name in ("y", "x"):
        assert_close(got.pop(name), expected.pop(name), SINGLE, name)
    assert_same_gradients(got, rename(expected))


@SHARING
def test_qwen3_next(value_heads: int) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        **HEADS, linear_num_value_heads=value_heads, linear_value_head_dim=8, rms_norm_eps=1e-4
    )
    layer = ours(value_heads, 8, output_norm_eps=1e-4)
    compare(
        Qwen3NextGatedDeltaNet(config, 0), layer, lambda state: qwen3_next_mixer(state, num_heads=2)
    )


@SHARING
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_olmo_hybrid(switch: bool, value_heads: int) -> None:
    torch.manual_seed(0)
    config = transformers.OlmoHybridConfig(
        **HEADS,
        linear_num_value_heads=value_heads,
        linear_value_head_dim=12,
        linear_allow_neg_eigval=switch,
    )
    layer = ours(value_heads, 12, output_norm_eps=1e-5, allow_neg_eigval=switch)
    compare(OlmoHybridGatedDeltaNet(config, 0), layer, delta_rule_mixer)


def test_the_convolutions_of_olmo_hybrid_in_checkpoint_files() -> None:
    """They have one for each of q, k and v; loading joins them."""
    config = transformers.OlmoHybridConfig(**HEADS, linear_num_value_heads=2)
    state = OlmoHybridGatedDeltaNet(config, 0).state_dict()
    expected = delta_rule_mixer(state)
    sizes = [len(state[f"{part}_proj.weight"]) for part in "qkv"]
    parts = state.pop("conv1d.weight").split(sizes)
    state |= {f"{n}_conv1d.weight": part for n, part in zip("qkv", parts, strict=True)}
    assert_all_close(delta_rule_mixer(state), expected, 0.0)
