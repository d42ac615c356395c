"""Layers with inputs, and the assertion that a step is right, for the tests of decoders."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from statetrack.layers.decoder import Decoder
from statetrack.testing.inputs import draw
from tests.layers.common import HIDDEN, make_layer, make_state
from tests.ops.common import assert_close


def wide_step(layer: nn.Module, x: Tensor, state):
    """The same step by definition in float64."""
    wide = copy.deepcopy(layer).double()
    return wide.step(x.double(), type(state)(*(part.double() for part in state)))


def assert_right(decoder: Decoder, x: Tensor, state) -> None:
    """The decoder's step is that of its layer in float64."""
    y, after = decoder.step(x, state)
    expected, expected_after = wide_step(decoder.layer, x, state)
    assert y.dtype == torch.float32
    assert_close(y.double(), expected, 5e-6, "y")
    for name, part, wanted in zip(after._fields, after, expected_after, strict=True):
        assert part.shape == wanted.shape
        assert part.dtype == torch.float32
        if part.numel():
            assert_close(part.double(), wanted, 5e-6, name)


def setting(config, batch: int = 1, hidden_size: int = HIDDEN):
    layer = make_layer(config, hidden_size).float()
    state = make_state(layer, batch)
    return layer, draw(3)(batch, hidden_size).float(), type(state)(*(s.float() for s in state))
