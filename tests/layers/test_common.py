"""The small parts of layers, by definition."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from statetrack.errors import UserError
from statetrack.layers.common import HeadNorm, HeadwiseLinear, small_init_
from statetrack.testing.inputs import draw
from tests.ops.common import assert_close


@pytest.mark.parametrize(("features", "blocks"), [(12, 3), (12, 12), (12, 1), (8, 2)])
def test_headwise_linear_is_a_block_diagonal_matrix(features, blocks):
    normal = draw(0)
    layer = HeadwiseLinear(features, blocks)
    layer.weight.data = normal(*layer.weight.shape)
    x = normal(2, 5, features)
    assert_close(layer(x), F.linear(x, torch.block_diag(*layer.weight)), 1e-12)
    assert_close(layer(x[0, 0]), layer(x)[0, 0], 1e-12)


def test_headwise_linear_of_blocks_that_do_not_divide():
    for blocks in (0, 5):
        with pytest.raises(UserError, match=f"{blocks} blocks do not divide 12 features"):
            HeadwiseLinear(12, blocks)


def test_small_init():
    torch.manual_seed(0)
    weight = torch.empty(200, 200)
    small_init_(weight, 10)
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 50), rel=0.02)


def test_head_norm_is_group_norm():
    normal = draw(1)
    norm = HeadNorm(3, 4).double()
    assert torch.equal(norm.weight, torch.ones(12))
    norm.weight.data = normal(12)
    x = normal(2, 5, 3, 4)
    expected = F.group_norm(x.reshape(10, 12), 3, norm.weight, eps=1e-5)
    assert_close(norm(x), expected.view_as(x), 1e-12)


def test_head_norm_in_bfloat16_is_rounded_once():
    x = draw(2)(4, 2, 8).bfloat16()
    norm = HeadNorm(2, 8)
    assert torch.equal(norm(x), norm(x.float()).bfloat16())
