"""Gated DeltaNet against its formula, its gate, its two switches and its initialisation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from statetrack.layers import DeltaNetConfig, DeltaNetState, GatedDeltaNet, GatedDeltaNetConfig
from tests.layers import references
from tests.layers.common import inputs, make_layer
from tests.ops.common import assert_close

SWITCHES = [
    pytest.param(eigval, gate, id=f"{'[-1,1]' if eigval else '[0,1]'}-gate-{'+-' if gate else '+'}")
    for eigval in (False, True)
    for gate in (False, True)
]


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 3},
        {"num_heads": 2, "num_v_heads": 4, "expand_k": 0.5, "expand_v": 1.0},
        {"num_heads": 1, "output_gate": False, "output_norm_eps": 0.1},
    ],
    ids=["plain", "shared-keys", "no-output-gate"],
)
@pytest.mark.parametrize("conv_size", [4, 0])
@pytest.mark.parametrize(("eigval", "gate"), SWITCHES)
def test_forward_is_the_formula(eigval, gate, conv_size, options):
    layer = make_layer(
        GatedDeltaNetConfig(eigval, allow_neg_gate=gate, conv_size=conv_size, **options)
    )
    x = inputs(2, 11)
    y, state = layer(x)
    assert isinstance(state, DeltaNetState)
    for row in range(2):
        expected, S = references.delta_layer(layer, x[row])
        assert_close(y[row], expected, 1e-11)
        assert_close(state.S[row], S, 1e-11)


def saturated(eigval: bool, gate: bool) -> GatedDeltaNet:
    """A layer whose betas and gates come to their ends, independently of each other."""
    layer = make_layer(GatedDeltaNetConfig(eigval, allow_neg_gate=gate, num_heads=3))
    with torch.no_grad():
        layer.beta.proj.weight *= 1e3
        layer.a_proj.weight *= 1e3
        layer.A_log.fill_(3.0)
    return layer


@pytest.mark.parametrize(("eigval", "gate"), SWITCHES)
def test_bounds_and_reach_of_the_four_combinations(eigval, gate):
    layer = saturated(eigval, gate)
    transition = layer.transitions(10 * inputs(4, 100))
    assert transition.bounds == ((-1.0 if eigval or gate else 0.0), 1.0)
    values = transition.eigvals().real
    low, high = transition.bounds
    assert low - 1e-9 <= values.min() <= low + 1e-3
    assert high - 1e-3 <= values.max() <= high + 1e-9

    along, across = values[..., 0], values[..., 1:]
    assert (across.min() < -0.9) == gate
    if gate and not eigval:  # all of one sign: -I is within reach, a reflection is not
        assert (along[..., None] * across >= -1e-9).all()
    if eigval:  # reflections
        assert ((along < -0.9) & (across.min(-1).values > 0.9)).any()
    if eigval and gate:  # and their negatives
        assert ((along > 0.9) & (across.max(-1).values < -0.9)).any()


def test_a_gate_of_1_leaves_delta_net():
    gated = make_layer(GatedDeltaNetConfig(True, num_heads=3, expand_v=1.0, output_gate=False))
    plain = make_layer(DeltaNetConfig(True, num_heads=3))
    state = gated.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    with torch.no_grad():
        gated.A_log.fill_(-1e3)
    x = inputs(2, 40)
    assert_close(gated(x)[0], plain(x)[0], 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gate_is_computed_in_float32(dtype):
    torch.manual_seed(0)
    layer = GatedDeltaNet(32, allow_neg_gate=True).to(dtype)
    transition = layer.transitions(torch.randn(1, 20, 32, dtype=dtype))
    assert transition.decay.dtype == torch.float32


def test_gradients_of_gates_at_their_ends():
    layer = saturated(True, True)
    x = (10 * inputs(2, 40)).requires_grad_()
    y, end = layer(x)
    decay = layer.transitions(x).decay
    assert decay.min() == -1
    assert decay.max() == 1
    for gradient in torch.autograd.grad(y.sum() + end.S.sum(), [x, *layer.parameters()]):
        assert gradient.isfinite().all()


def test_initialisation():
    torch.manual_seed(0)
    layer = GatedDeltaNet(256, num_heads=64)
    A = layer.A_log.exp()
    assert 0 < A.min() < 1.5
    assert 14.5 < A.max() <= 16
    dt = F.softplus(layer.dt_bias)
    assert 1e-3 * (1 - 1e-4) <= dt.min() < 1.5e-3
    assert 0.7e-1 < dt.max() <= 1e-1 * (1 + 1e-4)
    assert float((dt < 1e-2).float().mean()) == pytest.approx(0.5, abs=0.2)
    for weight in (layer.a_proj.weight, layer.g_proj.weight):
        bound = 2**-2.5 * math.sqrt(6 / sum(weight.shape))
        assert 0.98 * bound < weight.abs().max() <= bound
    assert layer.key_size == 4
    assert layer.value_size == 8
    assert {name for name, _ in layer.named_parameters()} == {
        *("qkv_proj.weight", "conv.weight", "beta.proj.weight", "norm.weight", "o_proj.weight"),
        *("g_proj.weight", "a_proj.weight", "A_log", "dt_bias"),
    }


def test_sizes_of_shared_keys():
    layer = GatedDeltaNet(64, num_heads=4, num_v_heads=8)
    assert (layer.key_size, layer.value_size) == (16, 16)
    assert layer.init_state(2).S.shape == (2, 8, 16, 16)
    assert layer.qkv_proj.weight.shape == (64 + 64 + 128, 64)
    assert layer.beta.proj.weight.shape == layer.a_proj.weight.shape == (8, 64)


def test_what_has_no_weight_decay():
    assert set(GatedDeltaNet.no_weight_decay) == {"A_log", "dt_bias"}


def test_title():
    assert GatedDeltaNetConfig().title == "Gated DeltaNet [0,1]"
    assert GatedDeltaNetConfig(True).title == "Gated DeltaNet [-1,1]"
    assert GatedDeltaNetConfig(allow_neg_gate=True).title == "Gated DeltaNet [0,1], gate [-1,1]"
    both = GatedDeltaNetConfig(True, allow_neg_gate=True)
    assert both.title == "Gated DeltaNet [-1,1], gate [-1,1]"
