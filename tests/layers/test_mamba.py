"""Mamba against the protocol's text, its options and its initialisation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from statetrack.layers import Mamba, MambaConfig, MambaState
from tests.layers import references
from tests.layers.common import inputs, make_layer, step_through
from tests.ops.common import assert_close


@pytest.mark.parametrize(
    "options",
    [{}, {"d_state": 3, "expand": 1, "dt_rank": 5}, {"d_state": 1, "conv_size": 2}],
    ids=["plain", "narrow", "one-state"],
)
@pytest.mark.parametrize("conv", [True, False], ids=["conv", "no-conv"])
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_forward_is_the_protocol(switch, conv, options):
    if not conv:
        options = {**options, "conv_size": 0}
    layer = make_layer(MambaConfig(allow_neg_eigval=switch, **options))
    x = inputs(2, 11)
    y, state = layer(x)
    assert isinstance(state, MambaState)
    for n in range(2):
        expected, h = references.mamba(layer, x[n])
        assert_close(y[n], expected, 1e-11)
        assert_close(state.h[n], h, 1e-11)


@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_step_honours_the_range(switch):
    """Other implementations' step forgets the extended range; ours is the protocol's."""
    layer = make_layer(MambaConfig(allow_neg_eigval=switch))
    x = inputs(1, 8)
    y, state = step_through(layer, x, layer.init_state(1))
    expected, h = references.mamba(layer, x[0])
    assert_close(y[0], expected, 1e-11)
    assert_close(state.h[0], h, 1e-11)


def test_the_switch_changes_only_the_transition():
    """From a zero state the first token only writes, which is the same; the second differs."""
    x = inputs(1, 2)
    (y, state), (signed_y, signed_state) = (
        make_layer(MambaConfig(allow_neg_eigval=switch))(x[:, :1]) for switch in (False, True)
    )
    assert_close(signed_y, y, 1e-12)
    assert_close(signed_state.h, state.h, 1e-12)
    (y, _), (signed_y, _) = (
        make_layer(MambaConfig(allow_neg_eigval=switch))(x) for switch in (False, True)
    )
    assert (signed_y - y)[:, 1].abs().max() > 1e-6


def test_initialisation():
    torch.manual_seed(0)
    layer = Mamba(128)
    assert layer.channels == 256
    assert layer.dt_rank == 8
    expected = torch.tensor([math.log(n) for n in range(1, 17)]).expand(256, 16)
    assert_close(layer.A_log.detach(), expected, 1e-6)
    assert torch.equal(layer.D, torch.ones(256))

    dt = F.softplus(layer.dt_proj.bias)
    assert 1e-3 * (1 - 1e-4) <= dt.min() < 1.1e-3
    assert 0.9e-1 < dt.max() <= 1e-1 * (1 + 1e-4)
    # uniform in the logarithm: half of it below the geometric mean
    assert float((dt < 1e-2).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert 0.98 * 8**-0.5 < layer.dt_proj.weight.abs().max() <= 8**-0.5
    assert 0.49 < layer.conv.weight.abs().max() <= 0.5
    assert layer.conv.bias.shape == (256,)


def test_step_sizes_have_a_floor():
    layer = Mamba(16, dt_min=1e-7, dt_max=1e-6)
    dt = F.softplus(layer.dt_proj.bias.double())
    assert_close(dt, torch.full_like(dt, 1e-4), 1e-4)


@pytest.mark.parametrize(("hidden_size", "rank"), [(1, 1), (16, 1), (17, 2), (128, 8)])
def test_rank_of_the_step_size(hidden_size, rank):
    layer = Mamba(hidden_size)
    assert layer.dt_rank == rank
    assert layer.x_proj.weight.shape == (2 * hidden_size, rank + 32)[::-1]


def test_what_has_no_weight_decay():
    assert set(Mamba.no_weight_decay) == {"A_log", "D"}


def test_parameters():
    layer = Mamba(8)
    assert {name for name, _ in layer.named_parameters()} == {
        *("in_proj.weight", "conv.weight", "conv.bias", "x_proj.weight", "dt_proj.weight"),
        *("dt_proj.bias", "A_log", "D", "out_proj.weight"),
    }


def test_states_are_float32_whatever_the_weights():
    layer = Mamba(8).bfloat16()
    y, state = layer(torch.randn(1, 40, 8).bfloat16())
    assert y.dtype == torch.bfloat16
    assert state.h.dtype == torch.float32
    y, state = layer.step(torch.randn(1, 8).bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert state.h.dtype == torch.float32


def test_title():
    assert MambaConfig().title == "Mamba [0,1]"
    assert MambaConfig(allow_neg_eigval=True).title == "Mamba [-1,1]"


@pytest.mark.parametrize("half", ["autocast", "weights"])
def test_the_step_sizes_are_wide_in_half_precision(half):
    """In bfloat16 eigenvalues near 1, which long memories need, would be 1 or 0.996."""
    layer, x = Mamba(32), torch.randn(1, 5, 32)
    if half == "weights":
        layer, x = layer.bfloat16(), x.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half == "autocast"):
        values = layer.transitions(x).values
        y, state = layer(x)
    assert values.dtype == state.h.dtype == torch.float32
    assert not torch.equal(values, values.bfloat16().float())
    assert y.dtype == torch.bfloat16
