"""Training in mixed precision: finite, near float32, and the state stays in float32."""

from __future__ import annotations

import pytest
import torch

from statetrack.layers import DeltaNet
from tests.layers.common import LAYERS, inputs, make_layer
from tests.ops.common import assert_close


@pytest.mark.parametrize("config", LAYERS)
def test_forward_and_backward(config):
    layer = make_layer(config).float()
    x = inputs(2, 40).float().requires_grad_()
    weights = inputs(2, 40, seed=5).float()
    expected, expected_end = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, end = layer(x)
        loss = (weights * y).sum() + end[0].sum()
    gradients = torch.autograd.grad(loss, [x, *layer.parameters()])
    assert y.dtype == torch.bfloat16
    assert end[0].dtype == torch.float32
    assert all(g.isfinite().all() for g in gradients)
    assert all(g.abs().max() > 0 for g in gradients)
    assert_close(y, expected, 0.05)
    assert_close(end[0], expected_end[0], 0.05)


@pytest.mark.parametrize("config", LAYERS)
def test_step_follows_forward(config):
    layer = make_layer(config).float()
    x = inputs(2, 10).float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x)
        _, state = layer(x[:, :6])
        for t in range(6, 10):
            y_t, state = layer.step(x[:, t], state)
            assert_close(y_t, y[:, t], 0.05)


@pytest.mark.parametrize("seed", range(4))
def test_reflections_stay_reflections_in_bfloat16(seed):
    """A key that is too long by a rounding of bfloat16 would make the state explode."""
    torch.manual_seed(seed)
    layer = DeltaNet(32, num_heads=2, conv_size=0, allow_neg_eigval=True)
    with torch.no_grad():
        layer.beta.proj.weight.fill_(10.0)  # beta = 2 for inputs that sum to something positive
    x = torch.rand(1, 1, 32).expand(1, 2000, 32)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        _, state = layer(x)
        transition = layer.transitions(x[:, :1])
    assert transition.beta.min() == 2
    low, high = transition.bounds
    assert low - 1e-5 <= transition.eigvals().real.min() <= transition.eigvals().real.max() <= high
    assert state.S.abs().max() < 10
