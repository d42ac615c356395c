"""The Triton kernels with a matrix-valued state, in Triton's interpreter, against the loops.

Chunks and blocks are shortened in most tests, so that a few tokens and columns go through several.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from statetrack.errors import UserError
from statetrack.ops import delta_product, delta_rule, gated_linear_attention
from statetrack.ops.recurrence import gpu, gpu_sizes
from statetrack.testing import check_op
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_all_close, assert_close, run
from tests.ops.inputs import delta_product_inputs, delta_rule_inputs, linear_attention_inputs
from tests.ops.pointwise import poisoned, strided

TOLERANCE = 2e-6
GATES = pytest.mark.parametrize("gate", [None, "g", "decay"], ids=["no-gate", "g", "decay"])
SIZES = pytest.mark.parametrize(  # T, K, V
    "sizes", [(1, 1, 1), (7, 3, 8), (4, 8, 3), (3, 16, 20), (3, 20, 16)], ids=str
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Three steps in a chunk; for 16 keys or more blocks of 8 or 16 columns."""
    monkeypatch.setattr(gpu, "chunk_size", lambda K: 3)
    monkeypatch.setattr(gpu_sizes, "WARP", 64)


def assert_right(op, inputs: Tensors, tolerance: float = TOLERANCE, **options) -> None:
    """All outputs and gradients in float32 are those of the naive op in float64."""
    expected = run(op, inputs, torch.float64, backend="naive", **options)
    with poisoned():
        actual = run(op, inputs, torch.float32, backend="triton", **options)
    assert_all_close(actual, expected, tolerance)


@GATES
@SIZES
def test_delta_rule(sizes, gate):
    T, K, V = sizes
    assert_right(delta_rule, delta_rule_inputs(1, T, 2, K, V, gate=gate))


@GATES
@pytest.mark.parametrize("n", [1, 2, 3])
def test_delta_product(n, gate):
    inputs = delta_product_inputs(2, 3, 1, 5, 11, n, gate=gate)
    assert_right(delta_product, inputs, num_householder=n)


@GATES
@SIZES
def test_linear_attention(sizes, gate):
    T, K, V = sizes
    assert_right(gated_linear_attention, linear_attention_inputs(1, T, 2, K, V, gate=gate))


@pytest.mark.parametrize("gate", ["g", "decay"])
@SIZES
def test_gates_on_channels(sizes, gate):
    T, K, V = sizes
    inputs = linear_attention_inputs(1, T, 2, K, V, gate=gate, per_channel=True)
    assert_right(gated_linear_attention, inputs)


@pytest.mark.parametrize("n", [1, 3])
def test_longer_than_a_chunk_of_the_size_in_use(monkeypatch, n):
    monkeypatch.undo()
    T = gpu.chunk_size(4) // n + 1
    inputs = delta_product_inputs(1, T, 1, 4, 5, n, gate="decay")
    assert_right(delta_product, inputs, num_householder=n)


CASES = {
    "delta": (delta_rule, delta_rule_inputs),
    "product": (partial(delta_product, num_householder=2), partial(delta_product_inputs, n=2)),
    "head": (gated_linear_attention, linear_attention_inputs),
    "channel": (gated_linear_attention, partial(linear_attention_inputs, per_channel=True)),
}
EACH = pytest.mark.parametrize("case", CASES)
SMALL = {"B": 1, "T": 4, "H": 2, "K": 3, "V": 9}


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("decay", [-1.0, 0.0, 1.0])
def test_ends_of_the_ranges(decay, beta):
    inputs = delta_product_inputs(1, 4, 1, 3, 2, 2, gate="decay")
    inputs["decay"].fill_(decay)
    inputs["beta"].fill_(beta)
    assert_right(delta_product, inputs, num_householder=2)


@EACH
def test_a_log_gate_of_minus_infinity_has_no_gradient(case):
    op, make = CASES[case]
    inputs = make(**SMALL, gate="g")
    inputs["g"][:, 1:3] = -torch.inf
    assert_right(op, inputs)
    assert not run(op, inputs, torch.float32, backend="triton")["dg"][:, 1:3].any()


@EACH
@pytest.mark.parametrize("gate", ["g", "decay"])
def test_gradients_of_small_gates(case, gate):
    """The gradient of each gate is right by itself: those of the small ones are small too."""
    op, make = CASES[case]
    inputs = make(**SMALL, gate=gate)
    gates = 1e-4 * draw(5)(*inputs[gate].shape).abs().clamp(0.2, 2)
    inputs[gate] = (gates.log() if gate == "g" else gates).float().double()
    expected = run(op, inputs, torch.float64, backend="naive")[f"d{gate}"]
    actual = run(op, inputs, torch.float32, backend="triton")[f"d{gate}"]
    errors = (actual - expected).abs() / expected.abs()
    assert errors.max() < 1e-4


@EACH
@pytest.mark.parametrize("gate", ["g", "decay"])
def test_without_an_initial_state(case, gate):
    op, make = CASES[case]
    inputs = make(**SMALL, gate=gate)
    del inputs["initial_state"]
    expected = run(op, inputs, torch.float64, backend="naive")
    actual = run(op, inputs, torch.float32, backend="triton")
    assert not actual[f"d{gate}"][:, 0].any()  # the first gate has nothing to act on
    assert_all_close(actual, expected, TOLERANCE)


@EACH
@pytest.mark.parametrize("bounds", [[0, 1, 5, 7], [0, 3, 6]], ids=str)
def test_packed_sequences(case, bounds):
    op, make = CASES[case]
    inputs = make(B=1, T=bounds[-1], H=2, K=3, V=2, gate="decay")
    inputs["initial_state"] = draw(1)(len(bounds) - 1, 2, 3, 2)
    assert_right(op, inputs, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))


@EACH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_with_a_float32_state(case, dtype):
    op, make = CASES[case]
    inputs = {name: x.to(dtype).double() for name, x in make(**SMALL, gate="decay").items()}
    expected = run(op, inputs, torch.float64, backend="naive")
    actual = run(op, inputs, dtype, backend="triton")
    assert_close(actual.pop("final_state"), expected.pop("final_state"), 1e-6)
    assert {x.dtype for x in actual.values()} == {dtype}
    assert_all_close(actual, expected, 2 * torch.finfo(dtype).eps)


@EACH
def test_inputs_of_different_types(case):
    """A float32 gate and beta beside bfloat16 vectors, as layers have them."""
    op, make = CASES[case]
    wide = ("beta", "decay", "initial_state")
    inputs = {
        name: x.float() if name in wide else x.bfloat16()
        for name, x in make(**SMALL, gate="decay").items()
    }
    expected, final = op(**inputs, output_final_state=True, backend="naive")
    actual, state = op(**inputs, output_final_state=True, backend="triton")
    assert actual.dtype == torch.bfloat16
    assert_close(actual, expected, 1e-2)
    assert_close(state, final, 1e-6)


@EACH
def test_strided_inputs(case):
    """Slices of a fused projection, transposed and expanded tensors give the same numbers."""
    op, make = CASES[case]
    inputs = {name: x.float() for name, x in make(2, 3, 2, 4, 4, gate="decay").items()}
    expected = op(**inputs, backend="triton")[0]
    for view in (
        strided,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],  # heads of a wider tensor
    ):
        views = {name: x if name == "initial_state" else view(x) for name, x in inputs.items()}
        assert not all(x.is_contiguous() for x in views.values())
        assert torch.equal(op(**views, backend="triton")[0], expected)


def test_an_expanded_gradient():
    inputs = {name: x.float() for name, x in delta_rule_inputs(1, 3, 1, 2, 3).items()}
    gradients = []
    for reduce in (torch.sum, lambda o: (o * torch.ones_like(o)).sum()):
        leaf = inputs["k"].clone().requires_grad_()
        o, _ = delta_rule(**{**inputs, "k": leaf}, backend="triton")
        gradients += torch.autograd.grad(reduce(o), leaf)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("through", ["output", "state"])
def test_gradients_through_one_result_alone(through):
    inputs = delta_rule_inputs(**SMALL, gate="decay")

    def gradients(backend, dtype):
        leaves = {name: x.to(dtype, copy=True).requires_grad_() for name, x in inputs.items()}
        results = delta_rule(**leaves, output_final_state=True, backend=backend)
        loss = results[through == "state"].square().sum()
        found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(inputs, found, strict=True))

    expected = gradients("naive", torch.float64)
    assert_all_close(gradients("triton", torch.float32), expected, TOLERANCE)


@EACH
def test_conforms(case):
    op, make = CASES[case]
    op = partial(op, output_final_state=True)
    inputs = make(1, 2, 1, 2, 3, gate="decay")
    definition = partial(op, backend="naive")
    check_op(partial(op, backend="triton"), inputs, definition, title=case).raise_for_failures()


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiles_as_one_graph_in_both_directions():
    op, make = CASES["product"]
    inputs = make(**SMALL, gate="decay")
    torch._dynamo.reset()
    compiled = torch.compile(partial(op, backend="triton"), fullgraph=True, backend="aot_eager")
    expected = run(op, inputs, torch.float32, backend="triton")
    assert_all_close(run(compiled, inputs, torch.float32), expected, 1e-7)


@EACH
def test_gradients_of_gradients(case):
    op, make = CASES[case]
    inputs = make(1, 2, 1, 2, 3, gate="decay")

    def second(backend, dtype):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs.values()]
        o, _ = op(**dict(zip(inputs, leaves, strict=True)), backend=backend)
        first = torch.autograd.grad(o.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.sum() for g in first), leaves)

    pairs = zip(second("triton", torch.float32), second("naive", torch.float64), strict=True)
    for name, (actual, expected) in zip(inputs, pairs, strict=True):
        assert_close(actual, expected, 1e-5, name)


def test_what_it_refuses():
    inputs = delta_rule_inputs(1, 2, 1, 2, 2)
    with pytest.raises(UserError, match="backend triton: it does not compute in float64"):
        delta_rule(**inputs, backend="triton")
    wide = {name: x.float() for name, x in delta_rule_inputs(1, 1, 1, 257, 1).items()}
    with pytest.raises(UserError, match="backend triton: it serves heads of at most 256 key"):
        delta_rule(**wide, backend="triton")
