"""DeltaNet against the protocol's text, its options and its initialisation."""

from __future__ import annotations

import math

import pytest
import torch

from statetrack.layers import DeltaNet, DeltaNetConfig, DeltaNetState
from tests.layers import references
from tests.layers.common import inputs, make_layer
from tests.ops.common import assert_close


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 4},
        {"num_heads": 3, "expand_k": 0.5, "expand_v": 2.0},
        {"num_heads": 1, "output_norm_eps": 0.1, "conv_size": 2},
    ],
    ids=["plain", "expanded", "one-head"],
)
@pytest.mark.parametrize("conv", [True, False], ids=["conv", "no-conv"])
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_forward_is_the_protocol(switch, conv, options):
    if not conv:
        options = {**options, "conv_size": 0}
    layer = make_layer(DeltaNetConfig(allow_neg_eigval=switch, **options))
    x = inputs(2, 11)
    y, state = layer(x)
    assert isinstance(state, DeltaNetState)
    for n in range(2):
        expected, S = references.delta_net(layer, x[n])
        assert_close(y[n], expected, 1e-11)
        assert_close(state.S[n], S, 1e-11)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_conv_state_is_the_last_inputs_of_the_convolution(width):
    layer = make_layer(DeltaNetConfig(num_heads=2, conv_size=width))
    x = inputs(2, 3)
    _, state = layer(x)
    window = torch.cat([torch.zeros(2, width, 36), layer.qkv_proj(x)], 1)
    assert_close(state.conv, window[:, window.shape[1] - width + 1 :], 1e-12)


@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_beta_without_stretch_is_a_sigmoid(switch):
    layer = make_layer(DeltaNetConfig(switch, num_heads=3))
    x = inputs(2, 20)
    beta = layer.transitions(x).beta[..., 0]
    logits = torch.einsum("bti,hi->bth", x, layer.beta.proj.weight)
    assert_close(beta, (1 + switch) / (1 + torch.exp(-logits)), 1e-12)
    assert 0 < beta.min() < beta.max() < 1 + switch


@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_stretched_beta_reaches_its_ends_exactly(switch):
    layer = make_layer(DeltaNetConfig(switch, num_heads=3, beta_stretch=0.1))
    x = 2 * inputs(4, 50)
    top = 1.0 + switch
    beta = layer.transitions(x).beta[..., 0]
    s = torch.sigmoid(torch.einsum("bti,hi->bth", x, layer.beta.proj.weight))
    inside = (s > 0.1 / 1.2) & (s < 1.1 / 1.2)
    assert (beta[s < 0.08] == 0).all()
    assert (beta[s > 0.92] == top).all()
    assert (s < 0.08).any()
    assert (s > 0.92).any()
    assert_close(beta[inside], top * (1.2 * s[inside] - 0.1), 1e-12)


def test_initialisation():
    torch.manual_seed(0)
    layer = DeltaNet(128, expand_k=0.5, expand_v=2.0)
    parts = layer.qkv_proj.weight.split([64, 64, 256])
    gain = 2**-2.5
    for weight in (*parts, layer.beta.proj.weight, layer.o_proj.weight):
        bound = gain * math.sqrt(6 / sum(weight.shape))  # Xavier's, for a uniform distribution
        assert 0.98 * bound < weight.abs().max() <= bound
        assert float(weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert layer.o_proj.weight.shape == (128, 256)
    assert layer.beta.proj.weight.shape == (4, 128)
    assert 0.49 < layer.conv.weight.abs().max() <= 0.5  # PyTorch's default for width 4
    assert torch.equal(layer.norm.weight, torch.ones(64))
    assert {name for name, _ in layer.named_parameters()} == {
        *("qkv_proj.weight", "conv.weight", "beta.proj.weight", "norm.weight", "o_proj.weight")
    }


@pytest.mark.parametrize(("switch", "middle"), [(False, 0.5), (True, 1.0)], ids=["[0,1]", "[-1,1]"])
def test_beta_starts_in_the_middle(switch, middle):
    torch.manual_seed(0)
    layer = DeltaNet(128, allow_neg_eigval=switch)
    beta = layer.transitions(inputs(2, 50, 128).float()).beta.detach()
    assert float(beta.mean()) == pytest.approx(middle, rel=0.05)


def test_states_are_float32_whatever_the_weights():
    layer = DeltaNet(8, num_heads=2).bfloat16()
    y, state = layer(torch.randn(1, 40, 8).bfloat16())
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == torch.float32
    y, state = layer.step(torch.randn(1, 8).bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == torch.float32


def test_everything_has_weight_decay():
    assert DeltaNet.no_weight_decay == ()


def test_title():
    assert DeltaNetConfig().title == "DeltaNet [0,1]"
    assert DeltaNetConfig(allow_neg_eigval=True).title == "DeltaNet [-1,1]"
