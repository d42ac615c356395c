"""A Mamba layer on the Triton kernels, interpreted, against its definition."""

from __future__ import annotations

import pytest
import torch

from statetrack.layers import Mamba
from statetrack.layers.operations import TensorOps
from tests.ops.common import assert_close


@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_agrees_with_its_definition(switch):
    torch.manual_seed(0)
    layer = Mamba(6, allow_neg_eigval=switch)
    x = torch.randn(2, 5, 6)
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    found = []
    for backend in ("naive", "triton"):
        y, state = layer.mix(x, layer.init_state(2), TensorOps(mask, backend))
        loss = y.square().sum() + sum(part.square().sum() for part in state)
        found.append([y, *state, *torch.autograd.grad(loss, list(layer.parameters()))])
    for expected, actual in zip(*found, strict=True):
        assert_close(actual, expected, 5e-6)
