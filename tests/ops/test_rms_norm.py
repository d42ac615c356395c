"""RMSNorm: its definition, and the native kernels against it in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import rms_norm
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_close
from tests.ops.pointwise import (
    assert_compiles,
    assert_native_is_right,
    assert_threads_do_not_matter,
    needs_native,
    run_all,
)

pytestmark = pytest.mark.native


def norm_inputs(*shape: int) -> Tensors:
    normal = draw(0)
    return {"x": normal(*shape), "weight": normal(shape[-1])}


@needs_native
@given(
    st.lists(st.integers(1, 6), max_size=3),
    st.integers(1, 70),
    st.sampled_from([1e-6, 0.3, 10.0]),
)
def test_native_agrees_with_naive(rows, size, eps):
    # one channel: y depends on x through eps alone, so its gradient is a small difference
    assert_native_is_right(rms_norm, norm_inputs(*rows, size), 1e-4 if size == 1 else 2e-6, eps=eps)


@needs_native
@pytest.mark.parametrize("shape", [(2500, 3), (3000, 32), (70, 1000), (3, 33000)], ids=str)
def test_sums_over_many_blocks(shape):
    assert_native_is_right(rms_norm, norm_inputs(*shape), 2e-6)
    assert_threads_do_not_matter(rms_norm, norm_inputs(*shape))


def test_the_definition():
    x, weight = norm_inputs(5, 7).values()
    expected = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 0.1) * weight
    assert_close(rms_norm(x, weight, eps=0.1), expected, 1e-14)


@needs_native
def test_ends_of_the_range():
    for level in library.LEVELS:
        with library.forced(level):
            x = torch.tensor([[0.0, 0.0, 0.0], [1e15, -1e15, 1e15], [torch.nan, 1, 1]])
            x.requires_grad_()
            y = rms_norm(x, torch.ones(3), backend="native")
            (dx,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(y[:2], torch.tensor([[0.0, 0, 0], [1, -1, 1]]))
        assert torch.allclose(dx[0], torch.full((3,), 1000.0))
        assert dx[1].abs().max() < 1e-14
        assert y[2].isnan().all()


@needs_native
def test_compiles_in_both_directions():
    assert_compiles(rms_norm, norm_inputs(4, 5, 9))


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_half_precision_is_for_inputs_and_outputs_only(backend):
    inputs = {name: x.bfloat16() for name, x in norm_inputs(50, 20).items()}
    oracle = run_all(rms_norm, inputs, torch.float64, backend="naive")
    got = run_all(rms_norm, inputs, torch.bfloat16, backend=backend)
    for name, value in got.items():
        assert value.dtype == torch.bfloat16
        assert_close(value, oracle[name], 0.01, name)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(()), torch.zeros(1), "x must be"),
        (torch.zeros(3, 0), torch.zeros(0), "x must be"),
        (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(2), "x must be a floating-point"),
        (torch.zeros(3, 2), torch.zeros(3), "weight must"),
    ],
)
def test_mistakes(x, weight, message):
    with pytest.raises(UserError, match=message):
        rms_norm(x, weight)
