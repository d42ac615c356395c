"""Layers in float32, on the kernels that `auto` chooses, against float64: values and gradients."""

from __future__ import annotations

import pytest
import torch

from statetrack.testing.inputs import draw
from tests.layers.common import LAYERS, inputs, make_layer, make_state
from tests.ops.common import assert_close


@pytest.mark.parametrize("lengths", [None, (40, 1, 17)], ids=["whole", "masked"])
@pytest.mark.parametrize("config", LAYERS)
def test_agrees_with_double_precision(config, lengths):
    mask = None if lengths is None else torch.arange(40) < torch.tensor(lengths)[:, None]
    results = []
    for dtype in (torch.float64, torch.float32):
        layer = make_layer(config).to(dtype)
        x = inputs(3, 40).to(dtype).requires_grad_()
        own = make_state(layer, 3)
        parts = [s.to(dtype).requires_grad_() if s.is_floating_point() else s for s in own]
        state = type(own)(*parts)
        y, end = layer(x, state, mask=mask)
        normal = draw(1)
        loss = sum((normal(*part.shape) * part).sum() for part in (y, *end))
        parts = [s for s in state if s.numel() and s.requires_grad]
        gradients = torch.autograd.grad(loss, [x, *parts, *layer.parameters()])
        results.append([y, *end, *gradients])
    for double, single in zip(*results, strict=True):
        assert single.dtype == (torch.float32 if double.is_floating_point() else double.dtype)
        assert_close(single, double, 1e-4)
