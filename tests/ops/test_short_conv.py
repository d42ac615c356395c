"""The short convolution: its definition, and the native kernels against it in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import short_conv
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


def conv_inputs(
    B: int, T: int, D: int, W: int, *, bias: bool = True, window: bool = True, seed: int = 0
) -> Tensors:
    normal = draw(seed)
    inputs = {"x": normal(B, T, D), "weight": normal(D, W)}
    if bias:
        inputs["bias"] = normal(D)
    if window:
        inputs["window"] = normal(B, W - 1, D)
    return inputs


@st.composite
def cases(draw_from):
    """Inputs and options with every combination of what is optional."""
    parts = draw_from(
        st.lists(
            st.one_of(
                st.tuples(st.integers(1, 40), st.just(0)),
                st.tuples(st.integers(1, 5), st.sampled_from([1, 3, 8, 16, 33, 150])),
            ),
            min_size=1,
            max_size=3,
        )
    )
    sizes = [n * (head or 1) for n, head in parts]
    B, T, W = (draw_from(st.integers(1, n)) for n in (3, 20, 8))
    inputs = conv_inputs(
        B, T, sum(sizes), W, bias=draw_from(st.booleans()), window=draw_from(st.booleans())
    )
    options = {"silu": draw_from(st.booleans())}
    if len(sizes) > 1 or parts[0][1]:
        options |= {"sizes": sizes, "head_sizes": [head for _, head in parts]}
    if draw_from(st.booleans()):
        lengths = draw_from(st.lists(st.integers(0, T), min_size=B, max_size=B))
        options["mask"] = torch.arange(T) < torch.tensor(lengths)[:, None]
    return inputs, options


@needs_native
@given(cases())
def test_native_agrees_with_naive(case):
    inputs, options = case
    # a head of one channel is almost its sign, and its gradient a small difference
    tolerance = 1e-4 if 1 in options.get("head_sizes", []) else 2e-6
    assert_native_is_right(short_conv, inputs, tolerance, **options)


@needs_native
@pytest.mark.parametrize(
    ("shape", "sizes", "head_sizes"),
    [
        pytest.param((40, 40, 96, 4), [32, 32, 32], [8, 8, 0], id="qkv"),
        pytest.param((1, 1500, 130, 3), [130], [0], id="long"),
        pytest.param((1100, 1, 9, 2), [9], [9], id="many-rows"),
        pytest.param((2, 30, 700, 4), [300, 400], [300, 0], id="wide"),
    ],
)
def test_sums_over_many_blocks(shape, sizes, head_sizes):
    inputs = conv_inputs(*shape)
    options = {"silu": True, "sizes": sizes, "head_sizes": head_sizes}
    assert_native_is_right(short_conv, inputs, 2e-6, **options)
    assert_threads_do_not_matter(short_conv, inputs, **options)


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_against_torch_conv1d(backend):
    x, weight, bias, _ = conv_inputs(2, 11, 6, 4).values()
    expected = F.conv1d(x.mT, weight[:, None], bias, padding=3, groups=6)[..., :11].mT
    (y,), window = short_conv(x.float(), weight.float(), bias.float(), backend=backend)
    assert_close(y, expected, 1e-6)
    assert torch.equal(window, x[:, -3:].float())


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_the_window_of_one_call_is_where_the_next_goes_on(backend):
    inputs = {name: x.float() for name, x in conv_inputs(2, 12, 6, 5).items()}
    x, window = inputs.pop("x"), inputs.pop("window")
    (y,), end = short_conv(x, **inputs, window=window, silu=True, backend=backend)
    for cut in (1, 2, 4, 11):
        (first,), middle = short_conv(
            x[:, :cut], **inputs, window=window, silu=True, backend=backend
        )
        (second,), last = short_conv(
            x[:, cut:], **inputs, window=middle, silu=True, backend=backend
        )
        assert_close(torch.cat([first, second], 1), y, 1e-6)
        assert torch.equal(last, end)


@needs_native
def test_ends_of_the_range():
    """SiLU is 0 far to the left and the identity far to the right; NaN stays NaN."""
    z = torch.tensor([-3e38, -1e30, -1e4, -100.0, -88.0, -20.0, 0.0, 20.0, 100.0, 1e30, torch.nan])
    for level in library.LEVELS:
        with library.forced(level):
            z_leaf = z[None, None].clone().requires_grad_()
            (y,), _ = short_conv(z_leaf, torch.ones(len(z), 1), silu=True, backend="native")
            (slope,) = torch.autograd.grad(y.sum(), z_leaf)
        assert torch.allclose(y.flatten(), F.silu(z), rtol=1e-5, atol=1e-35, equal_nan=True)
        exact = torch.tensor([0.0] * 4 + [0, -1.9e-9 * 19, 0.5, 1, 1, 1, torch.nan])
        assert torch.allclose(slope.flatten(), exact, atol=5e-9, equal_nan=True)


@needs_native
def test_heads_of_zeros_stay_finite():
    inputs = conv_inputs(1, 5, 8, 2)
    inputs["weight"][:4] = 0
    inputs["bias"][:4] = 0
    options = {"silu": True, "sizes": [8], "head_sizes": [4]}
    assert_native_is_right(short_conv, inputs, 2e-6, **options)


@needs_native
def test_compiles_in_both_directions():
    options = {"silu": True, "sizes": [6, 6, 8], "head_sizes": [3, 3, 0]}
    assert_compiles(short_conv, conv_inputs(2, 9, 20, 4), **options)


@needs_native
def test_a_part_without_a_gradient():
    inputs = {name: x.float().requires_grad_() for name, x in conv_inputs(2, 9, 8, 4).items()}
    for backend in ("naive", "native"):
        (_, second), _ = short_conv(**inputs, sizes=[4, 4], head_sizes=[2, 2], backend=backend)
        second.square().sum().backward()
        assert not inputs["x"].grad[..., :4].any()
    (_, _), window = short_conv(**inputs, sizes=[4, 4], backend="native")
    (dx,) = torch.autograd.grad(window.sum(), inputs["x"])
    assert dx.sum() == 2 * 3 * 8


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_half_precision_is_for_inputs_and_outputs_only(backend):
    inputs = {name: x.bfloat16() for name, x in conv_inputs(2, 9, 20, 4).items()}
    oracle = run_all(short_conv, inputs, torch.float64, silu=True, backend="naive")
    got = run_all(short_conv, inputs, torch.bfloat16, silu=True, backend=backend)
    for name, value in got.items():
        assert value.dtype == torch.bfloat16
        assert_close(value, oracle[name], 0.01, name)
    (k, v), _ = short_conv(**inputs, sizes=[12, 8], head_sizes=[4, 0], backend=backend)
    assert (k.dtype, v.dtype) == (torch.float32, torch.bfloat16)
    assert (k.unflatten(-1, (-1, 4)).norm(dim=-1) < 1 + 1e-6).all()


def test_wide_convolutions_are_for_naive():
    inputs = {name: x.float() for name, x in conv_inputs(1, 20, 3, 9).items()}
    (y,), _ = short_conv(**inputs)
    (same,), _ = short_conv(**inputs, backend="naive")
    assert torch.equal(y, same)
    with pytest.raises(UserError, match="widths up to 8; got 9"):
        short_conv(**inputs, backend="native")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(4, 6)}, "x must be"),
        ({"x": torch.zeros(2, 0, 6)}, "x must be"),
        ({"x": torch.zeros(2, 5, 6, dtype=torch.int64)}, "x must be a floating-point"),
        ({"weight": torch.zeros(5, 4)}, "weight must have shape"),
        ({"weight": torch.zeros(6, 0)}, "weight must be"),
        ({"bias": torch.zeros(5)}, "bias must"),
        ({"window": torch.zeros(2, 4, 6)}, "window must"),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, "mask must"),
        ({"mask": torch.ones(2, 5)}, "mask must"),
        ({"sizes": [3, 4]}, "sizes must .* got \\[3, 4\\]"),
        ({"sizes": [6, 0]}, "sizes must"),
        ({"sizes": [2, 4], "head_sizes": [2, 3]}, "head_sizes must"),
        ({"sizes": [2, 4], "head_sizes": [2]}, "head_sizes must"),
        ({"head_sizes": [-1]}, "head_sizes must"),
        ({"backend": "torch"}, "no backend 'torch'; it has: auto, naive, native"),
    ],
)
def test_mistakes(changes, message):
    inputs = {name: x.float() for name, x in conv_inputs(2, 5, 6, 4).items()}
    with pytest.raises(UserError, match=message):
        short_conv(**{**inputs, **changes})


@pytest.mark.parametrize("backend", ["naive", "auto"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_packed_sequences_are_as_each_by_itself(backend, dtype):
    bounds = [0, 1, 8, 20]
    inputs = {name: x.to(dtype) for name, x in conv_inputs(1, 20, 12, 4, window=False).items()}
    windows = draw(5)(3, 3, 12).to(dtype).requires_grad_()
    x = inputs.pop("x").requires_grad_()
    options = {"silu": True, "sizes": [8, 4], "head_sizes": [4, 0], "backend": backend}
    packed, after = short_conv(
        x, **inputs, window=windows, cu_seqlens=torch.tensor(bounds), **options
    )
    grads = torch.autograd.grad(sum(p.square().sum() for p in (*packed, after)), (x, windows))
    each = [
        short_conv(x[:, a:b], **inputs, window=windows[n : n + 1], **options)
        for n, (a, b) in enumerate(pairwise(bounds))
    ]
    parts = [torch.cat([one[0][i] for one in each], 1) for i in range(2)]
    expected = [*parts, torch.cat([one[1] for one in each])]
    for got, wanted in zip((*packed, after), expected, strict=True):
        assert_close(got, wanted, 1e-6)
    slow = torch.autograd.grad(sum(p.square().sum() for p in expected), (x, windows))
    for got, wanted in zip(grads, slow, strict=True):
        assert_close(got, wanted, 1e-5)


def test_mask_or_cu_seqlens_not_both():
    inputs = conv_inputs(1, 4, 2, 2)
    mask, bounds = torch.ones(1, 4, dtype=torch.bool), torch.tensor([0, 4])
    with pytest.raises(UserError, match="takes mask or cu_seqlens, not both"):
        short_conv(**inputs, mask=mask, cu_seqlens=bounds)


@pytest.mark.parametrize("backend", ["naive", "native"])
def test_a_head_along_an_axis_has_length_1_to_the_last_bit(backend):
    """So that the reflection in it has no rounding, however often it is applied."""
    x = torch.zeros(1, 1000, 3 * 19)
    random = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    x[..., ::19] = 1e3 * (random + random.sign())  # beside which eps is nothing
    (y,), _ = short_conv(x, torch.ones(57, 1), sizes=[57], head_sizes=[19], backend=backend)
    assert torch.equal(y, x.sign())
