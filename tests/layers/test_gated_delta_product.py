"""Gated DeltaProduct against its formula and against the layers that it contains."""

from __future__ import annotations

import pytest
import torch

from statetrack.layers import (
    DeltaNetState,
    DeltaProductConfig,
    GatedDeltaNetConfig,
    GatedDeltaProduct,
    GatedDeltaProductConfig,
)
from tests.layers import references
from tests.layers.common import assert_same_state, inputs, make_layer
from tests.ops.common import assert_close


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 3},
        {"num_heads": 2, "num_v_heads": 4, "expand_v": 1.0, "num_householder": 3},
        {"num_heads": 1, "output_gate": False, "num_householder": 1},
    ],
    ids=["plain", "three-factors-shared-keys", "one-factor"],
)
@pytest.mark.parametrize("conv_size", [4, 0])
@pytest.mark.parametrize("gate", [False, True], ids=["gate-[0,1]", "gate-[-1,1]"])
@pytest.mark.parametrize("eigval", [False, True], ids=["[0,1]", "[-1,1]"])
def test_forward_is_the_formula(eigval, gate, conv_size, options):
    layer = make_layer(
        GatedDeltaProductConfig(eigval, allow_neg_gate=gate, conv_size=conv_size, **options)
    )
    x = inputs(2, 11)
    y, state = layer(x)
    assert isinstance(state, DeltaNetState)
    for row in range(2):
        expected, S = references.delta_layer(layer, x[row])
        assert_close(y[row], expected, 1e-11)
        assert_close(state.S[row], S, 1e-11)


@pytest.mark.parametrize("conv_size", [4, 0])
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_one_factor_is_gated_delta_net(switch, conv_size):
    options = {"num_heads": 3, "conv_size": conv_size, "allow_neg_gate": switch}
    layer = make_layer(GatedDeltaProductConfig(switch, num_householder=1, **options))
    plain = make_layer(GatedDeltaNetConfig(switch, **options), seed=1)
    plain.load_state_dict(layer.state_dict())
    x = inputs(2, 40)
    (y, end), (expected, expected_end) = layer(x), plain(x)
    assert_close(y, expected, 1e-12)
    assert_same_state(end, expected_end, 1e-12)


def test_a_gate_of_1_leaves_delta_product():
    options = {"num_heads": 3, "num_householder": 3, "expand_v": 2.0, "output_gate": True}
    gated = make_layer(GatedDeltaProductConfig(True, **options))
    plain = make_layer(DeltaProductConfig(True, **options))
    state = gated.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    with torch.no_grad():
        gated.A_log.fill_(-1e3)
    x = inputs(2, 40)
    assert_close(gated(x)[0], plain(x)[0], 1e-12)


def test_the_gate_acts_once_per_token():
    layer = make_layer(GatedDeltaProductConfig(True, num_heads=1, num_householder=3))
    x = inputs(1, 4)
    transition = layer.transitions(x)
    assert transition.decay.shape == (1, 4, 1)
    factors = 1 - transition.beta * (transition.k**2).sum(-1)
    determinant = transition.decay**layer.key_size * factors.prod(-1)
    assert_close(torch.linalg.det(transition.dense()), determinant, 1e-10)


@pytest.mark.parametrize(
    ("n", "gate", "bounds"), [(2, False, (0.0, 1.0)), (3, False, (-0.125, 1.0)), (3, True, (-1, 1))]
)
def test_bounds(n, gate, bounds):
    config = GatedDeltaProductConfig(num_householder=n, allow_neg_gate=gate)
    assert config.bounds == pytest.approx(bounds, abs=1e-12)
    switched = GatedDeltaProductConfig(True, num_householder=n, allow_neg_gate=gate)
    assert switched.bounds == (-1.0, 1.0)


def test_what_has_no_weight_decay():
    assert set(GatedDeltaProduct.no_weight_decay) == {"A_log", "dt_bias"}


def test_title():
    assert GatedDeltaProductConfig().title == "Gated DeltaProduct [0,1], n = 2"
    config = GatedDeltaProductConfig(True, allow_neg_gate=True, num_householder=4)
    assert config.title == "Gated DeltaProduct [-1,1], gate [-1,1], n = 4"
