"""Mixed precision: what the state is stored in, and that reflections stay reflections."""

from __future__ import annotations

import pytest
import torch

from statetrack.layers import DeltaNet
from tests.layers.common import LAYERS, inputs, make_layer


@pytest.mark.parametrize("config", LAYERS)
def test_the_state_stays_in_float32(config):
    layer = make_layer(config).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, end = layer(inputs(2, 10).float())
    assert y.dtype == torch.bfloat16
    assert end[0].dtype == torch.float32


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
