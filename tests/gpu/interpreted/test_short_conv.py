"""The Triton kernels of the short convolution, interpreted, against naive in float64."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from statetrack.errors import UserError
from statetrack.ops import short_conv
from statetrack.ops.short_conv.gpu import conv_blocks
from statetrack.testing import check_op
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_all_close, assert_close
from tests.ops.pointwise import poisoned, run_all, strided
from tests.ops.test_short_conv import conv_inputs

QKV = {"silu": True, "sizes": [6, 6, 8], "head_sizes": [3, 3, 0]}


@pytest.fixture(autouse=True)
def poison():
    with poisoned():
        yield


def compare(inputs: Tensors, tolerance: float = 2e-6, **options) -> None:
    oracle = run_all(short_conv, inputs, torch.float64, backend="naive", **options)
    for view in (lambda x: x, strided):
        got = run_all(short_conv, inputs, torch.float32, view, backend="triton", **options)
        assert_all_close(got, oracle, tolerance)


def test_blocks():
    assert conv_blocks(2048, 2048, 0) == ({"BT": 32, "BH": 1, "BC": 64}, 32)
    assert conv_blocks(2048, 2048, 128) == ({"BT": 16, "BH": 1, "BC": 128}, 16)
    assert conv_blocks(1, 24, 3) == ({"BT": 1, "BH": 8, "BC": 4}, 1)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        pytest.param((1, 1, 1, 1), {}, id="one-number"),
        pytest.param((2, 1, 3, 4), {"silu": True}, id="one-token"),
        pytest.param((2, 7, 5, 4), {"silu": True}, id="odd"),
        pytest.param((1, 33, 3, 2), {"silu": True}, id="two-blocks-of-tokens"),
        pytest.param((1, 3, 65, 2), {}, id="two-blocks-of-channels"),
        pytest.param((2, 5, 4, 8), {"silu": True}, id="wide"),
        pytest.param((2, 5, 20, 3), QKV, id="qkv"),
        pytest.param((1, 4, 36, 2), {"sizes": [36], "head_sizes": [4]}, id="many-heads"),
        pytest.param((1, 4, 71, 2), {"sizes": [1, 70], "head_sizes": [0, 70]}, id="large-head"),
    ],
)
def test_agrees_with_naive(shape, options):
    compare(conv_inputs(*shape), **options)


@pytest.mark.parametrize("silu", [True, False], ids=["silu", "linear"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("window", [True, False], ids=["window", "no-window"])
@pytest.mark.parametrize("lengths", [None, [0, 4], [2, 1]], ids=str)
def test_every_choice_of_optional_arguments(silu, bias, window, lengths):
    options = {"silu": silu, "sizes": [2, 2], "head_sizes": [2, 0]}
    if lengths is not None:
        options["mask"] = torch.arange(4) < torch.tensor(lengths)[:, None]
    inputs = conv_inputs(2, 4, 4, 3, bias=bias, window=window)
    oracle = run_all(short_conv, inputs, torch.float64, backend="naive", **options)
    got = run_all(short_conv, inputs, torch.float32, backend="triton", **options)
    assert_all_close(got, oracle, 2e-6)


def test_against_torch_conv1d():
    x, weight, bias, _ = conv_inputs(2, 11, 6, 4).values()
    expected = F.conv1d(x.mT, weight[:, None], bias, padding=3, groups=6)[..., :11].mT
    (y,), window = short_conv(x.float(), weight.float(), bias.float(), backend="triton")
    assert_close(y, expected, 1e-6)
    assert torch.equal(window, x[:, -3:].float())


def test_the_window_of_one_call_is_where_the_next_goes_on():
    inputs = {name: x.float() for name, x in conv_inputs(2, 9, 3, 5).items()}
    x, window = inputs.pop("x"), inputs.pop("window")
    run = partial(short_conv, **inputs, silu=True, backend="triton")
    (y,), end = run(x, window=window)
    for cut in (1, 4, 8):
        (first,), middle = run(x[:, :cut], window=window)
        (second,), last = run(x[:, cut:], window=middle)
        assert_close(torch.cat([first, second], 1), y, 1e-6)
        assert torch.equal(last, end)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # to infinity: the SiLU is 0
def test_ends_of_the_range():
    """SiLU is 0 far to the left and the identity far to the right; NaN stays NaN."""
    z = torch.tensor([-3e38, -1e30, -1e4, -100.0, -88.0, -20.0, 0.0, 20.0, 100.0, 1e30, torch.nan])
    z_leaf = z[None, None].clone().requires_grad_()
    (y,), _ = short_conv(z_leaf, torch.ones(len(z), 1), silu=True, backend="triton")
    (slope,) = torch.autograd.grad(y.sum(), z_leaf)
    assert torch.allclose(y.flatten(), F.silu(z), rtol=1e-5, atol=1e-35, equal_nan=True)
    exact = torch.tensor([0.0] * 4 + [0, -1.9e-9 * 19, 0.5, 1, 1, 1, torch.nan])
    assert torch.allclose(slope.flatten(), exact, atol=5e-9, equal_nan=True)


def test_heads_of_zeros_stay_finite():
    inputs = conv_inputs(1, 5, 8, 2)
    inputs["weight"][:4] = 0
    inputs["bias"][:4] = 0
    compare(inputs, silu=True, sizes=[8], head_sizes=[4])


def test_a_head_along_an_axis_has_length_1_to_the_last_bit():
    x = torch.zeros(1, 100, 3 * 19)
    random = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    x[..., ::19] = 1e3 * (random + random.sign())
    (y,), _ = short_conv(x, torch.ones(57, 1), sizes=[57], head_sizes=[19], backend="triton")
    assert torch.equal(y, x.sign())


def test_a_part_or_the_window_alone_has_a_gradient():
    inputs = {name: x.float().requires_grad_() for name, x in conv_inputs(2, 5, 8, 4).items()}
    (_, second), window = short_conv(**inputs, sizes=[4, 4], head_sizes=[2, 2], backend="triton")
    (dx,) = torch.autograd.grad(second.square().sum(), inputs["x"], retain_graph=True)
    assert not dx[..., :4].any()
    (dx,) = torch.autograd.grad(window.sum(), inputs["x"])
    assert dx.sum() == 2 * 3 * 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_for_inputs_and_outputs_only(dtype):
    inputs = {name: x.to(dtype) for name, x in conv_inputs(2, 5, 12, 4).items()}
    oracle = run_all(short_conv, inputs, torch.float64, silu=True, backend="naive")
    got = run_all(short_conv, inputs, dtype, silu=True, backend="triton")
    for name, value in got.items():
        assert value.dtype == dtype
        assert_close(value, oracle[name], 2 * torch.finfo(dtype).eps, name)
    (k, v), _ = short_conv(**inputs, sizes=[8, 4], head_sizes=[4, 0], backend="triton")
    assert (k.dtype, v.dtype) == (torch.float32, dtype)
    assert (k.unflatten(-1, (-1, 4)).norm(dim=-1) < 1 + 1e-6).all()


def test_weights_in_float32_of_inputs_in_bfloat16():
    inputs = {name: x.float() for name, x in conv_inputs(1, 3, 4, 2).items()}
    inputs["x"] = inputs["x"].bfloat16()
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    (y,), after = short_conv(**leaves, backend="triton")
    assert (y.dtype, after.dtype) == (torch.bfloat16, torch.bfloat16)
    grads = torch.autograd.grad(y.sum() + after.sum(), list(leaves.values()))
    assert [g.dtype for g in grads] == [x.dtype for x in leaves.values()]


def test_packed_sequences_are_as_each_by_itself():
    bounds = [0, 1, 4, 9]
    inputs = {name: x.float() for name, x in conv_inputs(1, 9, 6, 3, window=False).items()}
    windows = draw(5)(3, 2, 6).float()
    x = inputs.pop("x")
    options = {**inputs, "sizes": [4, 2], "head_sizes": [2, 0], "backend": "triton"}
    packed, after = short_conv(x, window=windows, cu_seqlens=torch.tensor(bounds), **options)
    each = [
        short_conv(x[:, a:b], window=windows[n : n + 1], **options)
        for n, (a, b) in enumerate(pairwise(bounds))
    ]
    parts = [torch.cat([one[0][i] for one in each], 1) for i in range(2)]
    for got, wanted in zip(
        (*packed, after), (*parts, torch.cat([x for _, x in each])), strict=True
    ):
        assert_close(got, wanted, 1e-6)


def test_gradients_of_gradients():
    inputs = conv_inputs(1, 4, 4, 2)

    def second(dtype, backend):
        leaves = [x.to(dtype).requires_grad_() for x in inputs.values()]
        given = dict(zip(inputs, leaves, strict=True))
        (k, v), after = short_conv(
            **given, silu=True, sizes=[2, 2], head_sizes=[2, 0], backend=backend
        )
        loss = (k[..., 0] * v[..., 0]).sum() + after.square().sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        inner = torch.stack([g.square().sum() for g in first]).sum()
        return dict(zip(inputs, torch.autograd.grad(inner, leaves), strict=True))

    assert_all_close(second(torch.float32, "triton"), second(torch.float64, "naive"), 1e-4)


def test_compiles_in_both_directions():
    torch.compiler.reset()
    op = partial(short_conv, **QKV, backend="triton")
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    inputs = conv_inputs(1, 5, 20, 4)
    expected = run_all(op, inputs, torch.float32)
    assert_all_close(run_all(compiled, inputs, torch.float32), expected, 1e-7)


def test_conforms():
    op = partial(short_conv, silu=True, sizes=[4, 2], head_sizes=[2, 0])
    inputs = conv_inputs(1, 3, 6, 3, bias=False)
    definition = partial(op, backend="naive")
    check_op(partial(op, backend="triton"), inputs, definition, title="conv").raise_for_failures()


def test_wide_convolutions_are_for_naive():
    inputs = {name: x.float() for name, x in conv_inputs(1, 20, 3, 9).items()}
    with pytest.raises(UserError, match="triton: it takes widths up to 8; got 9"):
        short_conv(**inputs, backend="triton")
