"""sLSTM's recurrence: its definition, and the native kernels against it in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import SLSTMMemory, slstm
from statetrack.ops.slstm import native as native_slstm
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_all_close, assert_close
from tests.ops.pointwise import (
    assert_compiles,
    assert_native_is_right,
    assert_threads_do_not_matter,
    needs_native,
    run_all,
)

pytestmark = pytest.mark.native


def slstm_inputs(B: int, T: int, H: int, D: int, seed: int = 0) -> Tensors:
    """Gates over a wide range, recurrent weights that matter, a state full of numbers."""
    normal = draw(seed)
    return {
        "x": 2 * normal(B, T, H, 4, D),
        "R": (normal(H, 4, D, D) / math.sqrt(D)).float().double(),
        "h": normal(B, H, D),
        "c": normal(B, H, D),
        "n": 0.5 + normal(B, H, D).abs(),
        "m": normal(B, H, D),
    }


def op(x: Tensor, R: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor, **options):
    """The op with a state, which comes out too."""
    return slstm(x, R, initial_state=(h, c, n, m), output_final_state=True, **options)


def from_zero(x: Tensor, R: Tensor, **options) -> Tensor:
    """The op's outputs from nothing."""
    return slstm(x, R, **options)[0]


def lengths(T: int, *counts: int) -> Tensor:
    return torch.arange(T) < torch.tensor(counts)[:, None]


# ---- the definition


def without_stabiliser(x: Tensor, R: Tensor) -> Tensor:
    """One sequence from nothing, feature by feature, with exp(i) itself."""
    T, H, _, D = x.shape
    h, c, n = (torch.zeros(H, D).double() for _ in range(3))
    outputs = torch.zeros(T, H, D).double()
    for t in range(T):
        before = h.clone()
        for head in range(H):
            for d in range(D):
                i, f, z, o = (x[t, head, g, d] + R[head, g, d] @ before[head] for g in range(4))
                forget = 1 / (1 + torch.exp(-f))
                c[head, d] = forget * c[head, d] + torch.exp(i) * torch.tanh(z)
                n[head, d] = forget * n[head, d] + torch.exp(i)
                h[head, d] = c[head, d] / n[head, d] / (1 + torch.exp(-o))
        outputs[t] = h
    return outputs


def test_the_definition():
    inputs = slstm_inputs(2, 9, 2, 3)
    h = from_zero(inputs["x"], inputs["R"], backend="naive")
    for n in range(2):
        assert_close(h[n], without_stabiliser(inputs["x"][n], inputs["R"]), 1e-12)


def test_the_scale_of_a_state_is_its_m():
    """(c, n, m) and (c e^s, n e^s, m - s) are the same memory."""
    inputs = slstm_inputs(2, 5, 2, 3)
    scaled = {
        **inputs,
        "c": inputs["c"] * math.exp(3),
        "n": inputs["n"] * math.exp(3),
        "m": inputs["m"] - 3,
    }
    assert_close(op(**scaled)[0], op(**inputs)[0], 1e-12)


@needs_native
def test_the_input_gate_of_the_only_token_has_no_gradient():
    """h = o z then, whatever i is."""
    inputs = slstm_inputs(2, 1, 2, 9)
    x = inputs["x"].float().requires_grad_()
    for level in library.LEVELS:
        with library.forced(level):
            h = from_zero(x, inputs["R"].float(), backend="native")
        (gradient,) = torch.autograd.grad(h.square().sum(), x)
        assert not gradient[:, :, :, 0].any()
        assert gradient[:, :, :, 2].all()


@needs_native
def test_the_gradient_of_m_vanishes_with_what_is_kept():
    """Input gates so large that almost nothing of the state is left: no noise takes its place."""
    inputs = slstm_inputs(3, 12, 2, 9, seed=1)
    inputs["x"][:, :, :, 0] = 30 * inputs["x"][:, :, :, 0].abs()
    expected = run_all(op, inputs, torch.float64, backend="naive")["dm"]
    for level in library.LEVELS:
        with library.forced(level):
            actual = run_all(op, inputs, torch.float32, backend="native")["dm"]
        distance = (actual - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-25)
        assert distance.max() < 1e-4


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_the_first_token_is_all_there_is(backend):
    """However small its input gate is; c and m of the empty state do not matter."""
    x = torch.zeros(1, 1, 1, 4, 3)
    x[0, 0, 0, 0] = torch.tensor([-1e4, 0.0, 1e4])
    x[0, 0, 0, 2] = 0.5
    zero = torch.zeros(1, 1, 3)
    for c, m in ((zero, zero), (zero + 1, zero + 50)):
        state = zero, c, zero, m
        h, end = slstm(
            x,
            torch.zeros(1, 4, 3, 3),
            initial_state=state,
            output_final_state=True,
            backend=backend,
        )
        expected = torch.full((3,), 0.5 * math.tanh(0.5))
        assert_close(h.flatten(), expected, 1e-6)
        assert torch.equal(end.n.flatten(), torch.ones(3))
        assert torch.equal(end.m.flatten(), torch.tensor([-1e4, 0.0, 1e4]))


def test_the_final_state():
    inputs = slstm_inputs(2, 5, 2, 3)
    h, end = op(**inputs)
    assert isinstance(end, SLSTMMemory)
    assert torch.equal(end.h, h[:, -1])
    assert slstm(inputs["x"], inputs["R"])[1] is None


# ---- native kernels

SHAPES = [
    pytest.param((B, T, H, D), id=f"B{B}-T{T}-H{H}-D{D}")
    for B, T, H, D in [
        (1, 1, 1, 1),
        (5, 2, 3, 1),
        (1, 7, 2, 3),
        (5, 7, 1, 32),
        (1, 300, 1, 3),
        (5, 300, 2, 32),
        (2, 7, 2, 33),
        (5, 2, 1, 64),
        (1, 7, 1, 128),
        (3, 2, 1, 129),
        (25, 3, 2, 17),
        (30, 4, 1, 32),
        (500, 2, 1, 5),
    ]
]


@needs_native
@pytest.mark.parametrize("shape", SHAPES)
def test_native_agrees_with_naive(shape):
    inputs = slstm_inputs(*shape)
    assert_native_is_right(op, inputs, 1e-5)
    assert_native_is_right(from_zero, {name: inputs[name] for name in ("x", "R")}, 1e-5)


@needs_native
@given(
    shape=st.tuples(st.integers(1, 8), st.integers(1, 12), st.integers(1, 3), st.integers(1, 40)),
    masked=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_native_agrees_with_naive_on_any_shape(shape, masked, seed):
    B, T = shape[:2]
    options = {}
    if masked:
        counts = torch.randint(T + 1, (B,), generator=torch.Generator().manual_seed(seed))
        options["mask"] = lengths(T, *counts.tolist())
    assert_native_is_right(op, slstm_inputs(*shape, seed=seed), 1e-5, **options)


@needs_native
@pytest.mark.parametrize("gate", range(4), ids=list("ifzo"))
@pytest.mark.parametrize("size", [50.0, 1000.0])
def test_gates_at_their_ends(gate, size):
    inputs = slstm_inputs(3, 20, 2, 9)
    inputs["x"][..., gate, :] = size * inputs["x"][..., gate, :].sign()
    # some gradients vanish but for the rounding errors of terms that cancel
    assert_native_is_right(op, inputs, 1e-4)


@needs_native
def test_all_gates_at_their_ends():
    inputs = slstm_inputs(3, 20, 2, 9)
    inputs["x"] = 50 * inputs["x"].sign()
    inputs["R"] *= 1e-3
    assert_native_is_right(op, inputs, 1e-4)


@needs_native
@pytest.mark.parametrize("scale", [1e-4, 1e-12])
def test_small_candidates_keep_their_digits(scale):
    """tanh and log sigmoid are right to the last digits, not to the last of 1."""
    inputs = slstm_inputs(2, 5, 1, 9)
    inputs["R"] *= 0
    inputs["x"][..., 2, :] *= scale
    inputs["c"] *= scale
    for level in library.LEVELS:
        with library.forced(level):
            single = {name: x.float() for name, x in inputs.items()}
            h, _ = op(**single, backend="native")
        expected, _ = op(**{name: x.double() for name, x in single.items()}, backend="naive")
        assert float((h / expected - 1).abs().median()) < 5e-7


@needs_native
@pytest.mark.parametrize("size", [-5.0, 5.0, 30.0, -30.0, 87.0])
def test_the_logarithm_of_the_forget_gate(size):
    """What is kept of m after one token with an input gate that is shut."""
    f = size * torch.rand(1, 1, 1, 64, generator=torch.Generator().manual_seed(0))
    x = torch.stack([torch.full_like(f, -1e4), f, f, f], 3)
    one = torch.ones(1, 1, 64)
    for level in library.LEVELS:
        with library.forced(level):
            _, end = slstm(
                x,
                torch.zeros(1, 4, 64, 64),
                initial_state=(one, one, one, 0 * one),
                output_final_state=True,
                backend="native",
            )
        expected = torch.nn.functional.logsigmoid(f.double())[:, 0]
        # what rounding x log2(e) moves an exponential by, and a few digits more
        assert ((end.m / expected - 1).abs() < 5e-7 + 1.3e-7 * f[:, 0].abs()).all()
        assert torch.equal(end.n, one)


@needs_native
@pytest.mark.parametrize("shape", [(1, 9, 3, 8), (60, 5, 2, 20), (500, 2, 1, 33)], ids=str)
def test_the_number_of_threads_changes_no_bit(shape):
    assert_threads_do_not_matter(op, slstm_inputs(*shape))


@needs_native
def test_compiles_in_both_directions():
    assert_compiles(op, slstm_inputs(2, 5, 2, 9))
    assert_compiles(op, slstm_inputs(2, 5, 2, 9), mask=lengths(5, 3, 5))


@needs_native
@pytest.mark.parametrize("level", library.LEVELS)
def test_the_state_of_one_call_is_where_the_next_goes_on(level):
    inputs = {name: x.float() for name, x in slstm_inputs(4, 9, 2, 12).items()}
    x = inputs.pop("x")
    with library.forced(level):
        h, end = op(x, **inputs, backend="native")
        for cut in (1, 4, 8):
            first, middle = op(x[:, :cut], **inputs, backend="native")
            second, last = op(x[:, cut:], inputs["R"], *middle, backend="native")
            assert torch.equal(torch.cat([first, second], 1), h)
            assert all(torch.equal(a, b) for a, b in zip(last, end, strict=True))


@needs_native
def test_only_some_outputs_have_a_gradient():
    inputs = slstm_inputs(2, 6, 2, 9)

    def gradients(dtype, backend, choose) -> Tensors:
        leaves = {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}
        loss = choose(*op(**leaves, backend=backend)).square().sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    for choose in (lambda h, _: h, lambda _, end: end.h, lambda _, end: end.m):
        expected = gradients(torch.float64, "naive", choose)
        assert_all_close(gradients(torch.float32, "native", choose), expected, 1e-5)


@needs_native
def test_nothing_is_kept_without_gradients():
    inputs = {name: x.float() for name, x in slstm_inputs(2, 6, 2, 9).items()}
    state = torch.stack([inputs[name] for name in "hcnm"])
    run = torch.ops.statetrack.slstm
    h, _, kept = run(inputs["x"], inputs["R"], state, None, False)
    assert kept.numel() == 0
    same, _, kept = run(inputs["x"], inputs["R"], state, None, True)
    assert kept.shape == (2 * 6 * 2, 7, 9)
    assert torch.equal(same, h)


@needs_native
def test_auto_takes_the_native_kernels_where_they_serve(monkeypatch):
    calls = []
    call = native_slstm.call
    monkeypatch.setattr(native_slstm, "call", lambda *a: (calls.append(a[0]), call(*a)))
    inputs = slstm_inputs(1, 2, 1, 2)
    op(**inputs)
    assert calls == []
    op(**{name: x.float() for name, x in inputs.items()})
    assert calls == ["slstm_forward"]
    with pytest.raises(UserError, match=r"backend native: .*not float64"):
        op(**inputs, backend="native")


# ---- what does not exist, and other number types


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_padding_is_as_if_it_were_not_there(backend):
    inputs = {name: x.float() for name, x in slstm_inputs(4, 7, 2, 9).items()}
    counts = (0, 3, 7, 1)
    padded = inputs["x"].clone()
    for row, count in enumerate(counts):
        padded[row, count:] = torch.nan
    leaf = padded.requires_grad_()
    h, end = op(**{**inputs, "x": leaf}, mask=lengths(7, *counts), backend=backend)
    (dx,) = torch.autograd.grad(h.square().sum() + sum(p.square().sum() for p in end), leaf)
    for row, count in enumerate(counts):
        mine = {name: x[row : row + 1] for name, x in inputs.items() if name != "R"}
        expected, state = torch.zeros(0), [mine[name] for name in "hcnm"]
        if count:
            mine["x"] = mine["x"][:, :count]
            expected, state = op(R=inputs["R"], **mine, backend=backend)
            assert_close(h[row, :count], expected[0], 1e-6)
        for part, wanted in zip(end, state, strict=True):
            assert_close(part[row], wanted[0], 1e-6)
        assert not h[row, count:].any()
        assert not dx[row, count:].any()
    assert dx.isfinite().all()


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_half_precision_is_for_inputs_and_outputs_only(backend):
    inputs = {name: x.bfloat16() for name, x in slstm_inputs(2, 20, 2, 9).items()}
    oracle = run_all(op, inputs, torch.float64, backend="naive")
    got = run_all(op, inputs, torch.bfloat16, backend=backend)
    for name, value in got.items():
        wide = name.startswith("output") and name != "output 0"
        assert value.dtype == (torch.float32 if wide else torch.bfloat16)
        assert_close(value, oracle[name], 1e-5 if wide else 0.01, name)


def test_autocast_does_not_lower_the_precision():
    inputs = slstm_inputs(2, 20, 2, 9)
    oracle = run_all(op, inputs, torch.float64, backend="naive")

    def under_autocast(**arguments):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return op(**arguments)

    assert_all_close(run_all(under_autocast, inputs, torch.float32, backend="naive"), oracle, 1e-5)


def test_second_derivatives():
    inputs = {name: x.requires_grad_() for name, x in slstm_inputs(1, 3, 1, 2).items()}
    torch.autograd.gradgradcheck(
        lambda *leaves: op(*leaves, backend="naive")[0], tuple(inputs.values())
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(2, 5, 4, 3)}, "x must be"),
        ({"x": torch.zeros(2, 0, 2, 4, 3)}, "x must be"),
        ({"x": torch.zeros(2, 5, 2, 3, 3)}, "x must have shape"),
        ({"x": torch.zeros(2, 5, 2, 4, 3, dtype=torch.int64)}, "x must be a floating-point"),
        ({"R": torch.zeros(2, 4, 3, 2)}, "R must have shape"),
        ({"initial_state": (torch.zeros(2, 2, 3),) * 3}, "initial_state must be"),
        ({"initial_state": (torch.zeros(2, 2, 2),) * 4}, "h of the state must have shape"),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, "mask must"),
        ({"mask": torch.ones(2, 5)}, "mask must"),
        ({"backend": "torch"}, "no backend 'torch'; it has: auto, naive, native"),
    ],
)
def test_mistakes(changes, message):
    inputs = slstm_inputs(2, 5, 2, 3)
    with pytest.raises(UserError, match=message):
        slstm(**{"x": inputs["x"], "R": inputs["R"], **changes})
