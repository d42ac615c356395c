"""The native selective scan against the naive loop in float64: values and every gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import selective_scan, selective_scan_step
from statetrack.ops.selective_scan import native as native_scan
from statetrack.ops.selective_scan import transition
from statetrack.testing.inputs import Tensors, draw, spread
from tests.ops.common import assert_all_close, assert_close, compare_scan, run
from tests.ops.inputs import selective_scan_inputs
from tests.ops.pointwise import poisoned

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(library.WHY_MISSING is not None, reason=str(library.WHY_MISSING)),
]

RANGES = [pytest.param(False, id="[0,1]"), pytest.param(True, id="[-1,1]")]
SHAPES = [
    pytest.param((B, T, D, N), id=f"B{B}-T{T}-D{D}-N{N}")
    for B, T, D, N in [
        (1, 1, 1, 1),
        (2, 1, 5, 3),
        (1, 2, 1, 7),
        (3, 3, 3, 16),
        (1, 33, 7, 3),
        (2, 40, 16, 16),
        (70, 5, 9, 5),
        (130, 3, 33, 2),
        (1, 64, 31, 33),
        (2, 65, 17, 64),
        (1, 129, 65, 8),
        (5, 40, 300, 1),
        (1, 7, 299, 63),
        (16, 70, 150, 9),  # several tiles and chunks in a unit of work
    ]
]


@pytest.fixture(params=library.LEVELS, autouse=True)
def level(request):
    with library.forced(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def poison():
    with poisoned():
        yield


def compare(inputs: Tensors, switch: bool, tolerance: float = 3e-6, **options) -> None:
    compare_scan("native", tolerance, inputs, switch, **options)


def bit_equal(a: Tensors, b: Tensors) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_naive(shape, switch):
    compare(selective_scan_inputs(*shape), switch)


@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 140), st.integers(1, 70), st.integers(1, 20)),
    switch=st.booleans(),
    skip=st.booleans(),
    gate=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_agrees_with_naive_on_any_shape(shape, switch, skip, gate, seed):
    compare(selective_scan_inputs(*shape, skip=skip, gate=gate, seed=seed), switch, 1e-5)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("skip", [True, False], ids=["D", "no-D"])
@pytest.mark.parametrize("gate", [True, False], ids=["z", "no-z"])
@pytest.mark.parametrize("start", [True, False], ids=["state", "no-state"])
def test_every_choice_of_optional_arguments(switch, skip, gate, start):
    inputs = selective_scan_inputs(2, 70, 19, 5, skip=skip, gate=gate)
    if not start:
        del inputs["initial_state"]
    compare(inputs, switch)


@pytest.mark.parametrize("switch", RANGES)
def test_2100_tokens(switch):
    inputs = selective_scan_inputs(1, 2100, 9, 3)
    compare(inputs, switch, 1e-5)
    inputs["delta"] /= 100  # a long memory
    compare(inputs, switch, 1e-5)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("delta", [0.0, 1e-6, 20.0, 2000.0])
def test_the_same_extreme_delta_everywhere(delta, switch):
    inputs = selective_scan_inputs(2, 70, 9, 4)
    inputs["delta"] = torch.full_like(inputs["delta"], delta).float().double()
    compare(inputs, switch, 1e-5)


@pytest.mark.parametrize("switch", RANGES)
def test_gates_that_are_shut_or_wide_open(switch):
    inputs = selective_scan_inputs(2, 20, 9, 4)
    inputs["z"] = spread(inputs["z"], -200.0, 200.0)
    compare(inputs, switch)


@pytest.mark.parametrize("switch", RANGES)
def test_delta_zero_leaves_the_state_untouched(switch):
    inputs = {name: x.float() for name, x in selective_scan_inputs(2, 70, 9, 5).items()}
    inputs["delta"].zero_()
    options = {"allow_neg_eigval": switch, "backend": "native"}
    _, state = selective_scan(**inputs, output_final_state=True, **options)
    assert torch.equal(state, inputs["initial_state"])


@pytest.mark.parametrize("switch", RANGES)
def test_very_large_delta_forgets_or_flips_the_sign(switch):
    inputs = {name: x.float() for name, x in selective_scan_inputs(1, 3, 9, 5).items()}
    inputs["delta"].fill_(1e5)
    inputs["B"].zero_()  # nothing is written
    options = {"allow_neg_eigval": switch, "backend": "native"}
    _, state = selective_scan(**inputs, output_final_state=True, **options)
    assert torch.equal(state, (-1 if switch else 0) * inputs["initial_state"])


@pytest.mark.parametrize("switch", RANGES)
def test_transitions_are_as_accurate_as_single_precision_can(switch):
    """One step from a state of ones, with nothing written, is the transition itself."""
    x = torch.cat([torch.linspace(-130, 3, 4001), torch.linspace(-1e-3, 0, 100), torch.zeros(1)])
    x = torch.cat([x, -torch.logspace(2, 37, 50)]).double()
    delta = x.neg().float()[None]
    one, nothing = torch.ones(1, 1), torch.zeros(1, 1)
    state = torch.ones(1, len(x), 1)
    A = -torch.ones(len(x), 1)
    options = {"allow_neg_eigval": switch, "backend": "native"}
    selective_scan_step(state, delta * 0, delta, A, nothing, one, **options)
    expected = transition(delta.double()[0], A.double(), switch)[:, 0]
    got = state.double()[0, :, 0]
    # 2e-7 of the exponential, and what rounding x log2(e) moves it by
    slack = torch.exp(x) * (1 if not switch else 2) * (2e-7 + 1.3e-7 * x.abs())
    vanishing = 2.0**-126 if not switch else 6e-8
    assert ((got - expected).abs() <= slack + vanishing).all()
    assert (got[x == 0] == 1).all()
    assert (got[x < -88] == (-1 if switch else 0)).all()


@pytest.mark.parametrize("switch", RANGES)
def test_state_of_one_call_is_where_the_next_goes_on(switch):
    inputs = {name: x.float() for name, x in selective_scan_inputs(2, 150, 9, 4).items()}
    fixed = {name: inputs.pop(name) for name in ("A", "D")}
    start = inputs.pop("initial_state")
    options = {"allow_neg_eigval": switch, "output_final_state": True, "backend": "native", **fixed}
    y, state = selective_scan(**inputs, initial_state=start, **options)
    for cut in (1, 63, 64, 65, 149):
        head = {name: x[:, :cut] for name, x in inputs.items()}
        tail = {name: x[:, cut:] for name, x in inputs.items()}
        first, middle = selective_scan(**head, initial_state=start, **options)
        second, end = selective_scan(**tail, initial_state=middle, **options)
        assert torch.equal(torch.cat([first, second], 1), y)
        assert torch.equal(end, state)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("start", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize(
    "bounds",
    [[0, 9], [0, 1, 2, 3], [0, 1, 65, 129, 130, 300], [0, 63, 127, 200, 264], list(range(90))],
    ids=["one", "single-tokens", "mixed", "chunks", "many"],
)
def test_packed_sequences(bounds, start, switch):
    inputs = selective_scan_inputs(1, bounds[-1], 19, 5)
    inputs["initial_state"] = draw(1)(len(bounds) - 1, 19, 5)
    if not start:
        del inputs["initial_state"]
    compare(inputs, switch, cu_seqlens=torch.tensor(bounds))


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("batch", [1, 3])
def test_slices_of_fused_projections_and_other_strides(switch, batch):
    inputs = selective_scan_inputs(batch, 70, 11, 5)
    plain = run(selective_scan, inputs, torch.float32, allow_neg_eigval=switch, backend="native")

    def strided(x: torch.Tensor, name: str) -> torch.Tensor:
        if name in ("A", "D", "initial_state"):
            return x.flip(0).flip(0) if name == "D" else x.mT.contiguous().mT
        if name == "z":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        return torch.cat([torch.full_like(x, torch.nan), x, x.detach()], -1)[
            ..., x.shape[-1] : 2 * x.shape[-1]
        ]

    def op(**leaves):
        arguments = {
            name: strided(x, name) if isinstance(x, torch.Tensor) else x
            for name, x in leaves.items()
        }
        return selective_scan(**arguments)

    options = {"allow_neg_eigval": switch, "backend": "native"}
    assert bit_equal(run(op, inputs, torch.float32, **options), plain)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("shape", [(1, 70, 100, 5), (3, 40, 33, 16), (70, 9, 40, 4)])
def test_the_number_of_threads_changes_no_bit(shape, switch):
    inputs = selective_scan_inputs(*shape)
    options = {"allow_neg_eigval": switch, "backend": "native"}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run(selective_scan, inputs, torch.float32, **options)
        torch.set_num_threads(2)
        two = run(selective_scan, inputs, torch.float32, **options)
    finally:
        torch.set_num_threads(before)
    assert bit_equal(one, two)


@pytest.mark.parametrize("switch", RANGES)
def test_half_precision_inputs(switch):
    inputs = selective_scan_inputs(2, 70, 9, 4)
    inputs = {name: x.bfloat16().double() for name, x in inputs.items()}
    options = {"allow_neg_eigval": switch}
    oracle = run(selective_scan, inputs, torch.float64, backend="naive", **options)
    got = run(selective_scan, inputs, torch.bfloat16, backend="native", **options)
    state, expected = got.pop("final_state"), oracle.pop("final_state")
    assert state.dtype == torch.float32
    assert_close(state, expected, 1e-5, "final_state")
    assert {x.dtype for x in got.values()} == {torch.bfloat16}
    assert_all_close(got, oracle, 2 * torch.finfo(torch.bfloat16).eps)


def test_only_the_output_or_only_the_state_has_a_gradient():
    inputs = selective_scan_inputs(2, 70, 9, 4)

    def gradients(dtype, backend, part):
        leaves = {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}
        results = selective_scan(**leaves, output_final_state=True, backend=backend)
        grads = torch.autograd.grad(
            results[part].square().sum(), list(leaves.values()), materialize_grads=True
        )
        return dict(zip(leaves, grads, strict=True))

    for part in (0, 1):
        got = gradients(torch.float32, "native", part)
        assert_all_close(got, gradients(torch.float64, "naive", part), 3e-6)


def test_auto_takes_the_native_kernels_where_they_serve(monkeypatch):
    calls = []
    call = native_scan.call
    monkeypatch.setattr(native_scan, "call", lambda *a: (calls.append(a[0]), call(*a)))
    inputs = selective_scan_inputs(1, 3, 2, 2)
    selective_scan(**inputs)
    assert calls == []
    selective_scan(**{name: x.float() for name, x in inputs.items()})
    assert calls == ["selective_scan_forward"]
    with pytest.raises(UserError, match=r"backend native: .*not float64"):
        selective_scan(**inputs, backend="native")


def test_nothing_is_kept_without_gradients():
    inputs = {name: x.float() for name, x in selective_scan_inputs(1, 200, 2, 2).items()}
    arguments = [inputs.get(name) for name in ("u", "delta", "A", "B", "C", "D", "z")]
    op = torch.ops.statetrack.selective_scan
    y, final, checkpoints = op(*arguments, None, None, False, False, False)
    assert (final.numel(), checkpoints.numel()) == (0, 0)
    kept = op(*arguments, None, None, False, True, True)[2]
    assert kept.shape == (199 // native_scan.CHUNK, 2, 2)
    assert torch.equal(y, op(*arguments, None, None, False, True, True)[0])


# ---- one token at a time


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("optional", [True, False], ids=["D-z", "plain"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 9, 5), (2, 33, 16), (70, 7, 17), (1, 299, 64)])
def test_steps_are_the_scan(shape, optional, switch, backend):
    B, D, N = shape
    inputs = selective_scan_inputs(B, 6, D, N, skip=optional, gate=optional)
    oracle, expected = selective_scan(
        **inputs, allow_neg_eigval=switch, output_final_state=True, backend="naive"
    )
    inputs = {name: x.float() for name, x in inputs.items()}
    state = inputs.pop("initial_state")
    shared = {name: inputs.pop(name) for name in ("A", "D") if name in inputs}
    same = state
    for t in range(6):
        token = {name: x[:, t] for name, x in inputs.items()}
        y = selective_scan_step(state, **token, **shared, allow_neg_eigval=switch, backend=backend)
        assert_close(y, oracle[:, t], 2e-6, f"y of token {t}")
    assert state is same
    assert_close(state, expected, 2e-6, "state")


@pytest.mark.parametrize("make", [lambda x: x.bfloat16(), lambda x: x.mT.contiguous().mT])
def test_step_on_any_state(make):
    inputs = {
        name: x.float()[:, 0]
        for name, x in selective_scan_inputs(2, 1, 9, 5).items()
        if name in ("u", "delta", "B", "C")
    }
    start, A = draw(3)(2, 9, 5).float(), -torch.ones(9, 5)
    state, expected = make(start.clone()), make(start.clone())
    y = selective_scan_step(state, A=A, **inputs, backend="native")
    assert_close(y, selective_scan_step(expected, A=A, **inputs, backend="torch"), 1e-6)
    assert_close(state, expected, 1e-6 if state.dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("state", (2, 3)),
        ("u", (2, 1, 3)),
        ("delta", (2, 4)),
        ("A", (4, 3)),
        ("B", (2, 3)),
        ("C", (1, 4)),
        ("D", (4,)),
        ("z", (3, 2)),
    ],
)
def test_shapes_of_the_step(name, shape):
    x = selective_scan_inputs(2, 1, 3, 4)
    arguments = {n: x[n][:, 0] for n in ("u", "delta", "B", "C", "z")}
    arguments |= {"state": x["initial_state"], "A": x["A"], "D": x["D"]}
    with pytest.raises(UserError, match=rf"selective_scan_step: {name} must"):
        selective_scan_step(**{**arguments, name: torch.zeros(shape)})
