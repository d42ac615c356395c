"""Softplus: its definition, and the native kernels against it in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import softplus
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_close
from tests.ops.pointwise import (
    assert_compiles,
    assert_native_is_right,
    assert_threads_do_not_matter,
    needs_native,
)

pytestmark = pytest.mark.native


def inputs(*shape: int) -> Tensors:
    return {"x": 4 * draw(0)(*shape)}


@needs_native
@given(st.lists(st.integers(1, 40), max_size=3))
def test_native_agrees_with_naive(shape):
    assert_native_is_right(softplus, inputs(1, *shape))


@needs_native
@pytest.mark.parametrize("shape", [(8193,), (3, 66000)], ids=str)
def test_many_blocks(shape):
    assert_native_is_right(softplus, inputs(*shape))
    assert_threads_do_not_matter(softplus, inputs(*shape))


def test_the_definition():
    x = inputs(5, 6)["x"]
    assert_close(softplus(x), torch.log(1 + torch.exp(x)), 1e-14)


@needs_native
def test_ends_of_the_range():
    ends = [-torch.inf, -3e38, -1e30, -100.0, -60.0, 0.0, 20.0, 1e30, torch.inf, torch.nan]
    for level in library.LEVELS:
        with library.forced(level):
            x = torch.tensor(ends, requires_grad=True)
            y = softplus(x, backend="native")
            (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.allclose(y, F.softplus(x), rtol=1e-5, atol=1e-37, equal_nan=True)
        assert torch.allclose(gradient, x.sigmoid(), rtol=1e-5, atol=1e-37, equal_nan=True)


@needs_native
def test_compiles_in_both_directions():
    assert_compiles(softplus, inputs(4, 5, 18))


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_empty_tensors_and_numbers(backend):
    for shape in ((0, 4), ()):
        x = torch.zeros(shape, requires_grad=True)
        y = softplus(x, backend=backend)
        y.sum().backward()
        assert y.shape == x.grad.shape == x.shape


def test_mistakes():
    with pytest.raises(UserError, match="floating-point tensor"):
        softplus(torch.zeros(2, dtype=torch.int64))
