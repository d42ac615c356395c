"""The native kernels with a matrix-valued state, at every level, against the loops in float64."""

from __future__ import annotations

from functools import partial

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import delta_product, delta_rule, gated_linear_attention
from statetrack.testing.inputs import Tensors, draw, unit
from tests.ops.common import assert_all_close, assert_close, run
from tests.ops.inputs import delta_product_inputs, delta_rule_inputs, linear_attention_inputs
from tests.ops.pointwise import poisoned

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(library.LIBRARY is None, reason=f"no library: {library.WHY_MISSING}"),
]

LEVELS = pytest.mark.parametrize("level", library.LEVELS)
GATES = pytest.mark.parametrize("gate", [None, "g", "decay"], ids=["no-gate", "g", "decay"])
SHAPES = [
    pytest.param(
        shape, id="-".join(f"{name}{size}" for name, size in zip("BTHKV", shape, strict=True))
    )
    for shape in [
        (1, 1, 1, 1, 1),
        (2, 1, 3, 5, 7),
        (2, 7, 3, 5, 2),
        (1, 40, 2, 32, 32),
        (1, 33, 1, 64, 64),
        (1, 9, 1, 3, 70),
        (1, 9, 2, 70, 3),
        (1, 6, 1, 256, 40),
        (1, 6, 1, 40, 256),
        (1, 600, 1, 8, 9),
    ]
]
# Gradients of gates come from long sums: half a digit less.
TOLERANCE, GATE_TOLERANCE = 2e-6, 1e-5


def assert_right(op, inputs: Tensors, level: str, **options) -> None:
    """All outputs and gradients, native in float32, are those of the naive op in float64."""
    expected = run(op, inputs, torch.float64, backend="naive", **options)
    with library.forced(level):
        actual = run(op, inputs, torch.float32, backend="native", **options)
    assert actual.keys() == expected.keys()
    for name in expected:
        tolerance = GATE_TOLERANCE if name in ("dg", "ddecay") else TOLERANCE
        if name == "dk" and expected[name].numel() == 1:
            tolerance = 3e-6  # the difference of two numbers 100 times as large
        assert_close(actual[name], expected[name], tolerance, name)


@LEVELS
@GATES
@pytest.mark.parametrize("shape", SHAPES)
def test_delta_rule(shape, gate, level):
    assert_right(delta_rule, delta_rule_inputs(*shape, gate=gate), level)


@LEVELS
@GATES
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_delta_product(shape, n, gate, level):
    inputs = delta_product_inputs(*shape, n, gate=gate)
    assert_right(delta_product, inputs, level, num_householder=n)


@LEVELS
@GATES
@pytest.mark.parametrize("per_channel", [False, True], ids=["per-head", "per-channel"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_linear_attention(shape, per_channel, gate, level):
    inputs = linear_attention_inputs(*shape, gate=gate, per_channel=per_channel)
    assert_right(gated_linear_attention, inputs, level)


@settings(max_examples=40)
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 70),
    H=st.integers(1, 3),
    K=st.integers(1, 80),
    V=st.integers(1, 80),
    gate=st.sampled_from([None, "g", "decay"]),
    n=st.integers(1, 4),
    op=st.sampled_from(["delta", "head", "channel"]),
    level=st.sampled_from(library.LEVELS or ["none"]),
    seed=st.integers(0, 1000),
)
def test_any_shape(B, T, H, K, V, gate, n, op, level, seed):
    if op == "delta":
        inputs = delta_product_inputs(B, T, H, K, V, n, gate=gate, seed=seed)
        assert_right(delta_product, inputs, level, num_householder=n)
    else:
        inputs = linear_attention_inputs(
            B, T, H, K, V, gate=gate, per_channel=op == "channel", seed=seed
        )
        assert_right(gated_linear_attention, inputs, level)


CASES = {
    "delta": (delta_rule, partial(delta_rule_inputs)),
    "product": (partial(delta_product, num_householder=2), partial(delta_product_inputs, n=2)),
    "head": (gated_linear_attention, linear_attention_inputs),
    "channel": (gated_linear_attention, partial(linear_attention_inputs, per_channel=True)),
}
EACH = pytest.mark.parametrize("case", CASES)


@LEVELS
@EACH
@pytest.mark.parametrize("kind", ["g", "decay"])
@pytest.mark.parametrize("state", [1.0, 1e-6], ids=lambda size: f"state-{size:g}")
@pytest.mark.parametrize("size", [0.5, 0.06, 0.01, 1e-4, 1e-6, 1e-8])
def test_gradients_of_small_gates(case, kind, size, state, level):
    """Each sequence of gates is right by itself: where its gates are small, its gradient is too."""
    op, make = CASES[case]
    inputs = make(B=2, T=25, H=2, K=16, V=12, gate=kind)
    gates = size * draw(5)(*inputs[kind].shape).abs().clamp(0.2, 2)
    inputs[kind] = (gates.log() if kind == "g" else gates).float().double()
    inputs["initial_state"] = (state * inputs["initial_state"]).float().double()
    assert row_errors(op, inputs, kind, level).max() < GATE_TOLERANCE


def row_errors(op, inputs: Tensors, kind: str, level: str) -> Tensor:
    """The error of each sequence of gates' gradients, relative to that sequence."""
    expected = run(op, inputs, torch.float64, backend="naive")[f"d{kind}"]
    with library.forced(level):
        actual = run(op, inputs, torch.float32, backend="native")[f"d{kind}"]
    return (actual - expected).norm(dim=1) / expected.norm(dim=1)


@LEVELS
@EACH
@pytest.mark.parametrize("kind", ["g", "decay"])
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_the_gate_of_a_single_token(case, kind, size, level):
    """It scales the initial state, however small that is."""
    op, make = CASES[case]
    inputs = make(B=2, T=1, H=2, K=16, V=12, gate=kind)
    inputs[kind] = -0.1 - inputs[kind].clamp(-1, 1).abs()
    inputs["initial_state"] = (size * inputs["initial_state"]).float().double()
    expected = run(op, inputs, torch.float64, backend="naive")[f"d{kind}"]
    with library.forced(level):
        actual = run(op, inputs, torch.float32, backend="native")[f"d{kind}"]
    assert_close(actual / size, expected / size, GATE_TOLERANCE)


@LEVELS
@EACH
@pytest.mark.parametrize("kind", ["g", "decay"])
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "no-state"])
def test_the_first_gate_has_no_gradient_without_a_state(case, kind, zeros, level):
    op, make = CASES[case]
    inputs = make(B=2, T=9, H=2, K=16, V=12, gate=kind)
    inputs["initial_state"] *= 0
    if not zeros:
        del inputs["initial_state"]
    with library.forced(level):
        gradient = run(op, inputs, torch.float32, backend="native")[f"d{kind}"]
    assert not gradient[:, 0].any()
    assert gradient[:, 1:].any()


@LEVELS
@EACH
@pytest.mark.parametrize("length", [9, 300])
def test_a_log_gate_of_minus_infinity_has_no_gradient(case, length, level):
    op, make = CASES[case]
    inputs = make(B=2, T=length, H=2, K=16, V=12, gate="g")
    closed = inputs["g"] == -torch.inf
    assert closed.any()
    with library.forced(level):
        gradient = run(op, inputs, torch.float32, backend="native")["dg"]
    assert not gradient[closed].any()


@EACH
@pytest.mark.parametrize("kind", ["g", "decay"])
def test_gradients_of_gates_do_not_drift(case, kind):
    """Were they one running sum, errors would stay in it, and the next sum over them grow."""
    op, make = CASES[case]
    inputs = make(B=1, T=3000, H=1, K=16, V=16, gate=kind)
    gates = (0.3 + 0.6 * draw(5)(*inputs[kind].shape).sigmoid()).clamp(max=1)
    inputs[kind] = gates.log() if kind == "g" else gates
    expected = run(op, inputs, torch.float64, backend="torch")[f"d{kind}"]
    actual = run(op, inputs, torch.float32, backend="native")[f"d{kind}"].double()
    assert_close(actual, expected, 5e-6)
    drift = (actual - expected).cumsum(1).abs().max() / expected.square().sum().sqrt()
    assert drift < 8e-5


@LEVELS
@EACH
@pytest.mark.parametrize("bounds", [[0, 1, 8, 40, 73], [0, 9], [0, 1, 2, 3]], ids=str)
def test_packed_sequences(case, bounds, level):
    op, make = CASES[case]
    inputs = make(B=1, T=bounds[-1], H=2, K=5, V=3, gate="decay")
    inputs["initial_state"] = draw(1)(len(bounds) - 1, 2, 5, 3)
    assert_right(op, inputs, level, cu_seqlens=torch.tensor(bounds))


@LEVELS
@EACH
def test_many_small_gates(case, level):
    """Their gradients cannot be had by division, in any segment of the sequence."""
    op, make = CASES[case]
    inputs = make(B=1, T=700, H=1, K=6, V=5, gate="decay")
    gates = inputs["decay"]
    gates[:, ::2] *= 0.05
    gates[:, 1::4] = 1.0
    gates[:, 300:310] = 0.0
    assert_right(op, inputs, level)


@EACH
@pytest.mark.parametrize("gate", ["g", "decay"])
def test_longer_than_a_segment_of_the_backward_pass(case, gate):
    op, make = CASES[case]
    inputs = make(B=1, T=5000, H=1, K=4, V=3, gate=gate)
    if gate == "g":
        inputs["g"] = -inputs["g"].abs().clamp(max=2) * 1e-3
    else:
        near_one = inputs["decay"].sign() * (1 - 1e-3 * inputs["decay"].abs())
        inputs["decay"] = near_one.float().double()
    expected = run(op, inputs, torch.float64, backend="torch")  # the loop is too slow here
    for level in library.LEVELS:
        with library.forced(level):
            assert_all_close(run(op, inputs, torch.float32, backend="native"), expected, 1e-4)


@LEVELS
def test_nearly_equal_keys_with_beta_near_two_at_4096_tokens(level):
    normal = draw(0)
    inputs = {
        "q": normal(1, 4096, 2, 8),
        "k": unit(normal(1, 1, 2, 8) + 0.02 * normal(1, 4096, 2, 8)),
        "v": normal(1, 4096, 2, 8),
        "beta": (2 - 0.01 * normal(1, 4096, 2).abs()).float().double(),
        "initial_state": normal(1, 2, 8, 8),
    }
    expected = run(delta_rule, inputs, torch.float64, backend="naive")
    with library.forced(level):
        actual = run(delta_rule, inputs, torch.float32, backend="native")
    assert_all_close(actual, expected, 1e-4)


@EACH
def test_strided_inputs(case):
    """Slices of a fused projection, transposed and expanded tensors give the same numbers."""
    op, make = CASES[case]
    inputs = {name: x.float() for name, x in make(B=2, T=9, H=3, K=8, V=8, gate="decay").items()}
    expected = run(op, inputs, torch.float32, backend="native")

    def strided(**tensors):
        options = {name: tensors.pop(name) for name in ("output_final_state", "backend")}
        fused = torch.cat([tensors[name] for name in ("k", "v")], 2)
        tensors["k"], tensors["v"] = fused.chunk(2, 2)
        tensors["q"] = tensors["q"].transpose(1, 2).contiguous().transpose(1, 2)
        tensors["initial_state"] = tensors["initial_state"].mT.contiguous().mT
        tensors["decay"] = torch.stack([tensors["decay"]] * 2, -1)[..., 0]
        return op(**tensors, **options)

    actual = run(strided, inputs, torch.float32, backend="native")
    for name in expected:
        assert torch.equal(actual[name], expected[name]), name


@EACH
def test_every_output_is_written(case):
    op, make = CASES[case]
    inputs = make(B=2, T=9, H=3, K=9, V=5, gate="decay")
    expected = run(op, inputs, torch.float32, backend="native")
    with poisoned():
        actual = run(op, inputs, torch.float32, backend="native")
    for name in expected:
        assert torch.equal(actual[name], expected[name]), name


@LEVELS
@EACH
def test_the_number_of_threads_changes_no_bit(case, level):
    op, make = CASES[case]
    inputs = make(B=3, T=50, H=3, K=20, V=70, gate="decay")
    results = []
    with library.forced(level):
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            try:
                results.append(run(op, inputs, torch.float32, backend="native"))
            finally:
                torch.set_num_threads(1)
    for name, first in results[0].items():
        assert all(torch.equal(first, other[name]) for other in results[1:]), name


@EACH
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiles_as_one_graph_in_both_directions(case):
    op, make = CASES[case]
    inputs = make(B=2, T=9, H=2, K=8, V=4, gate="decay")
    torch._dynamo.reset()
    compiled = torch.compile(partial(op, backend="auto"), fullgraph=True, backend="aot_eager")
    assert_all_close(run(compiled, inputs, torch.float32), run(op, inputs, torch.float32), 1e-6)


@EACH
def test_bfloat16_inputs_with_a_float32_state(case):
    op, make = CASES[case]
    inputs = {name: x.bfloat16().double() for name, x in make(B=2, T=50, H=2, K=8, V=5).items()}
    expected = run(op, inputs, torch.float64, backend="naive")
    actual = run(op, inputs, torch.bfloat16, backend="native")
    assert_close(actual.pop("final_state"), expected.pop("final_state"), 1e-5)
    assert {x.dtype for x in actual.values()} == {torch.bfloat16}
    assert_all_close(actual, expected, 2 * torch.finfo(torch.bfloat16).eps)


def test_auto_is_native_on_the_cpu_unless_in_float64(monkeypatch):
    calls = []
    real = library.call
    monkeypatch.setattr(
        "statetrack.ops.recurrence.native.call",
        lambda name, x: calls.append(name) or real(name, x),
    )
    inputs = delta_rule_inputs(1, 5, 1, 2, 2)
    delta_rule(**inputs)
    assert calls == []
    run(delta_rule, inputs, torch.float32)
    assert calls == ["recurrence_forward", "recurrence_backward"]


def test_float64_is_refused():
    with pytest.raises(UserError, match="cannot use its backend native: it serves tensors on the"):
        delta_rule(**delta_rule_inputs(1, 5, 1, 2, 2), backend="native")


def test_a_missing_library_is_named(monkeypatch):
    inputs = {name: x.float() for name, x in delta_rule_inputs(1, 5, 1, 2, 2).items()}
    monkeypatch.setattr(library, "WHY_MISSING", "not built: install a compiler")
    delta_rule(**inputs)  # the torch backend
    with pytest.raises(UserError, match="backend native: not built: install a compiler"):
        delta_rule(**inputs, backend="native")


def test_heads_that_take_turns_in_a_long_sequence():
    """Eight heads whose states do not fit the cache together, over more tokens than one turn."""
    inputs = delta_rule_inputs(1, 8200, 8, 64, 64)
    expected = run(delta_rule, inputs, torch.float32, backend="torch")
    actual = run(delta_rule, inputs, torch.float32, backend="native")
    assert_all_close(actual, expected, 1e-4)
