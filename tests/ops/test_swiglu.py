"""SwiGLU: its definition, and the native kernels against it in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import swiglu
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


def glu_inputs(*shape: int) -> Tensors:
    return {"x": 4 * draw(0)(*shape)}


@needs_native
@given(st.lists(st.integers(1, 6), max_size=3), st.integers(1, 70))
def test_native_agrees_with_naive(rows, size):
    assert_native_is_right(swiglu, glu_inputs(*rows, 2 * size))


@needs_native
@pytest.mark.parametrize("shape", [(2500, 6), (3000, 64), (3, 66000)], ids=str)
def test_many_blocks(shape):
    assert_native_is_right(swiglu, glu_inputs(*shape))
    assert_threads_do_not_matter(swiglu, glu_inputs(*shape))


def test_the_definition():
    x = glu_inputs(5, 6)["x"]
    gate, up = x[:, :3], x[:, 3:]
    assert_close(swiglu(x), gate / (1 + torch.exp(-gate)) * up, 1e-14)


@needs_native
def test_ends_of_the_range():
    gate = torch.tensor([-3e38, -1e30, -100.0, -88.0, 0.0, 100.0, 1e30, torch.inf, torch.nan])
    for level in library.LEVELS:
        with library.forced(level):
            x = torch.cat([gate, torch.ones_like(gate)]).requires_grad_()
            y = swiglu(x, backend="native")
            d_gate, d_up = torch.autograd.grad(y.sum(), x)[0].chunk(2)
        assert torch.allclose(y, F.silu(gate), rtol=1e-6, atol=1e-35, equal_nan=True)
        assert torch.allclose(d_up, F.silu(gate), rtol=1e-6, atol=1e-35, equal_nan=True)
        exact = torch.tensor([0, 0, 0, 0, 0.5, 1, 1])
        assert torch.allclose(d_gate[:7], exact, atol=1e-35)
        assert d_gate[8].isnan()


@needs_native
def test_compiles_in_both_directions():
    assert_compiles(swiglu, glu_inputs(4, 5, 18))


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_half_precision_is_for_inputs_and_outputs_only(backend):
    inputs = {name: x.bfloat16() for name, x in glu_inputs(50, 20).items()}
    oracle = run_all(swiglu, inputs, torch.float64, backend="naive")
    got = run_all(swiglu, inputs, torch.bfloat16, backend=backend)
    for name, value in got.items():
        assert value.dtype == torch.bfloat16
        assert_close(value, oracle[name], 0.01, name)


@pytest.mark.parametrize(
    "x",
    [torch.zeros(()), torch.zeros(3, 5), torch.zeros(0, 4), torch.zeros(2, 4, dtype=torch.int64)],
)
def test_mistakes(x):
    with pytest.raises(UserError, match="x must be a floating-point"):
        swiglu(x)
