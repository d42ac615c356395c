"""sLSTM against the protocol's text, its options and its initialisation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.errors import UserError
from statetrack.layers import SLSTM, SLSTMConfig, SLSTMState
from statetrack.models import ModelConfig, SequenceModel
from tests.layers.common import HIDDEN, inputs, make_layer, make_state
from tests.layers.references import causal_conv
from tests.ops.common import assert_close


def reference(layer: SLSTM, x: Tensor) -> tuple[Tensor, Tensor]:
    """y [T, hidden_size] and c / n [hidden_size] of one sequence, gates as they are: exp(i)."""
    H = layer.config.num_heads
    smooth = x
    if layer.conv is not None:
        smooth = causal_conv(x, layer.conv.weight, layer.conv.bias)
        smooth = smooth * torch.sigmoid(smooth)
    W, R = (
        [torch.block_diag(*weight[:, g]) for g in range(4)] for weight in (layer.W, layer.R)
    )  # of all heads together
    bias = layer.bias.transpose(0, 1).reshape(4, -1)
    h, c, n = (torch.zeros(layer.hidden_size).double() for _ in range(3))
    outputs = []
    for t in range(len(x)):
        seen = (smooth[t], smooth[t], x[t], x[t])
        i, f, z, o = (W[g] @ seen[g] + R[g] @ h + bias[g] for g in range(4))
        c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
        n = torch.sigmoid(f) * n + torch.exp(i)
        h = torch.sigmoid(o) * c / n
        outputs.append(F.group_norm(h[None], H, layer.norm.weight, eps=1e-5)[0])
    return torch.stack(outputs), c / n


@pytest.mark.parametrize("num_heads", [1, 3, 4])
@pytest.mark.parametrize("conv_size", [0, 1, 4])
def test_forward_is_the_protocol(num_heads, conv_size):
    layer = make_layer(SLSTMConfig(num_heads=num_heads, conv_size=conv_size))
    x = inputs(2, 11)
    y, state = layer(x)
    assert isinstance(state, SLSTMState)
    for n in range(2):
        expected, ratio = reference(layer, x[n])
        assert_close(y[n], expected, 1e-11)
        assert_close((state.c / state.n)[n].flatten(), ratio, 1e-11)


def test_the_state_is_what_came_before():
    """h, too: with the same c, n and m another h gives other outputs."""
    layer = make_layer(SLSTMConfig(num_heads=3))
    x, state = inputs(2, 3), make_state(layer, 2)
    y, _ = layer(x, state)
    other, _ = layer(x, state._replace(h=state.h + 1))
    assert (other - y).abs().max() > 1e-3


@pytest.mark.parametrize(("layer", "power"), [(0, 0.3), (1, 0.95), (2, 1.6)])
def test_forget_biases_by_depth(layer, power):
    config = ModelConfig(num_layers=3, hidden_size=32, mixer=SLSTMConfig(num_heads=2))
    mixer = SequenceModel(config).blocks[layer].mixer
    expected = torch.tensor([5 - 12 * (k / 15) ** power for k in range(16)])
    for head in range(2):
        assert_close(mixer.bias[head, 1], expected, 1e-6)
    assert not mixer.bias[:, [0, 2, 3]].any()


@pytest.mark.parametrize("layers", [1, 2])
def test_a_single_layer_and_a_single_feature(layers):
    config = ModelConfig(num_layers=layers, hidden_size=4, mixer=SLSTMConfig(num_heads=4))
    for block in SequenceModel(config).blocks:
        assert torch.equal(block.mixer.bias[:, 1], torch.full((4, 1), 5.0))
    assert torch.equal(SLSTM(4).bias, SLSTM(4, num_heads=4).bias)


def test_initialisation():
    torch.manual_seed(0)
    layer = SLSTM(128)
    assert layer.W.shape == layer.R.shape == (4, 4, 32, 32)
    assert float(layer.W.detach().std()) == pytest.approx((2 / (5 * 128)) ** 0.5, rel=0.03)
    assert not layer.R.any()
    assert torch.equal(layer.norm.weight, torch.ones(128))
    assert layer.conv.weight.shape == (128, 4)
    assert layer.conv.bias.shape == (128,)
    assert SLSTM(128, conv_size=0).conv is None


def test_standard_initialisation():
    torch.manual_seed(0)
    config = ModelConfig(num_layers=2, hidden_size=64, mixer=SLSTMConfig(gate_init="standard"))
    for block in SequenceModel(config).blocks:
        bias = block.mixer.bias
        assert bias.shape == (4, 4, 16)
        assert 0.95 / 8 < bias.max() <= 1 / 8
        assert -1 / 8 <= bias.min() < -0.95 / 8
        assert not block.mixer.R.any()


def test_parameters():
    layer = SLSTM(8)
    names = {name for name, _ in layer.named_parameters()}
    assert names == {"W", "R", "bias", "norm.weight", "conv.weight", "conv.bias"}
    assert set(SLSTM.no_weight_decay) == {"bias"}


def test_states_are_float32_whatever_the_weights():
    layer = SLSTM(8).bfloat16()
    y, state = layer(torch.randn(1, 40, 8).bfloat16())
    assert y.dtype == torch.bfloat16
    assert {part.dtype for part in state[:4]} == {torch.float32}
    y, state = layer.step(torch.randn(1, 8).bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert {part.dtype for part in state[:4]} == {torch.float32}


def test_mistakes():
    with pytest.raises(UserError, match="num_heads must divide hidden_size; got 5 heads for 12"):
        SLSTM(HIDDEN, num_heads=5)
    for name, value in (("num_heads", 0), ("conv_size", -1), ("gate_init", "small")):
        with pytest.raises(UserError, match=name):
            SLSTMConfig(**{name: value})


def test_title():
    assert SLSTMConfig().title == "sLSTM"
