"""The Triton kernels of the selective scan, interpreted, against the naive loop in float64."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from statetrack.errors import UserError
from statetrack.ops import selective_scan, selective_scan_step
from statetrack.ops.selective_scan import transition
from statetrack.ops.selective_scan.gpu import backward_blocks, scan_blocks
from statetrack.testing import check_op
from statetrack.testing.inputs import Tensors, draw, spread
from tests.ops.common import assert_all_close, assert_close, compare_scan, run
from tests.ops.inputs import selective_scan_inputs
from tests.ops.pointwise import poisoned, strided

RANGES = [pytest.param(False, id="[0,1]"), pytest.param(True, id="[-1,1]")]
CHUNK = 16  # of all shapes here; test_chunks_and_blocks
SHAPES = [
    pytest.param((B, T, D, N), id=f"B{B}-T{T}-D{D}-N{N}")
    for B, T, D, N in [
        (1, 1, 1, 1),
        (2, 7, 3, 5),
        (1, CHUNK + 1, 5, 16),
        (2, CHUNK, 2, 17),
        (1, 2 * CHUNK + 1, 7, 1),
        (1, 3, 33, 2),  # two blocks of channels
    ]
]


@pytest.fixture(autouse=True)
def poison():
    with poisoned():
        yield


def compare(inputs: Tensors, switch: bool, tolerance: float = 2e-6, **options) -> None:
    compare_scan("triton", tolerance, inputs, switch, **options)


def test_chunks_and_blocks():
    """So that the shapes here have several of them."""
    assert scan_blocks(5, 16).BT == scan_blocks(2, 17).BT == scan_blocks(7, 1).BT == CHUNK
    assert scan_blocks(33, 2).BD == 32
    assert scan_blocks(2048, 16) == backward_blocks(2048, 16, rocm=False) == (16, 16, 32, 8)
    assert backward_blocks(2048, 16, rocm=True) == (16, 16, 16, 4)
    for N in (1, 16, 100, 256, 4096):
        BT, BN, BD, num_warps = scan_blocks(2048, N)
        assert BN >= N
        of_thread = BT * BN * BD // (32 * num_warps)
        assert of_thread <= (64 if N > 2048 else 32)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_naive(shape, switch):
    compare(selective_scan_inputs(*shape), switch)


@pytest.mark.parametrize("switch", RANGES)
def test_the_blocks_of_rocm(switch, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.1")
    test_agrees_with_naive((2, CHUNK + 1, 33, 2), switch)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("skip", [True, False], ids=["D", "no-D"])
@pytest.mark.parametrize("gate", [True, False], ids=["z", "no-z"])
@pytest.mark.parametrize("start", [True, False], ids=["state", "no-state"])
def test_every_choice_of_optional_arguments(switch, skip, gate, start):
    inputs = selective_scan_inputs(1, CHUNK + 3, 3, 2, skip=skip, gate=gate)
    if not start:
        del inputs["initial_state"]
    compare(inputs, switch)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.5, 2000.0])
def test_the_same_delta_everywhere(delta, switch):
    inputs = selective_scan_inputs(1, CHUNK + 2, 3, 2)
    inputs["delta"] = torch.full_like(inputs["delta"], delta).float().double()
    compare(inputs, switch)


def test_transitions_of_exactly_0():
    """2 exp(delta A) - 1 is 0 where exp(delta A) is 1/2: nothing may be divided by it."""
    inputs = selective_scan_inputs(1, CHUNK + 2, 3, 2)
    inputs["A"] = torch.full_like(inputs["A"], -1.0)
    inputs["delta"] = torch.full_like(inputs["delta"], np.float32(np.log(2)))
    a = transition(inputs["delta"].float(), inputs["A"].float(), True)
    assert a.abs().max() < 1e-7
    compare(inputs, True)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # to infinity: the gate is 0
@pytest.mark.parametrize("switch", RANGES)
def test_gates_that_are_shut_or_wide_open(switch):
    inputs = selective_scan_inputs(1, 9, 3, 2)
    inputs["z"] = spread(inputs["z"], -200.0, 200.0)
    compare(inputs, switch)


@pytest.mark.parametrize("switch", RANGES)
def test_ends_of_the_range_are_exact(switch):
    """delta = 0 keeps the state; a large delta forgets it, or flips its sign."""
    inputs = {name: x.float() for name, x in selective_scan_inputs(1, 3, 5, 3).items()}
    inputs["B"].zero_()  # nothing is written
    options = {"allow_neg_eigval": switch, "output_final_state": True, "backend": "triton"}
    for delta, factor in ((0.0, 1), (1e5, -1 if switch else 0)):
        inputs["delta"].fill_(delta)
        _, state = selective_scan(**inputs, **options)
        assert torch.equal(state, factor * inputs["initial_state"])


@pytest.mark.parametrize("switch", RANGES)
def test_transitions_are_as_accurate_as_single_precision_can(switch):
    """One step from a state of ones, with nothing written, is the transition itself."""
    x = torch.cat([torch.linspace(-130, 0, 500), -torch.logspace(2, 37, 10)]).double()
    delta = x.neg().float()[None]
    one, nothing = torch.ones(1, 1), torch.zeros(1, 1)
    state, A = torch.ones(1, len(x), 1), -torch.ones(len(x), 1)
    options = {"allow_neg_eigval": switch, "backend": "triton"}
    selective_scan_step(state, delta * 0, delta, A, nothing, one, **options)
    expected = transition(delta.double()[0], A.double(), switch)[:, 0]
    # 2e-7 of the exponential, and what rounding x log2(e) moves it by
    slack = torch.exp(x) * (2 if switch else 1) * (2e-7 + 1.3e-7 * x.abs())
    vanishing = 6e-8 if switch else 2.0**-126
    assert ((state.double()[0, :, 0] - expected).abs() <= slack + vanishing).all()


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("start", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize(
    "bounds",
    [[0, 5], [0, 1, 2, 3], [0, 1, CHUNK + 1, 2 * CHUNK + 3, 2 * CHUNK + 4]],
    ids=["one", "single-tokens", "mixed"],
)
def test_packed_sequences(bounds, start, switch):
    inputs = selective_scan_inputs(1, bounds[-1], 3, 2)
    inputs["initial_state"] = draw(1)(len(bounds) - 1, 3, 2)
    if not start:
        del inputs["initial_state"]
    compare(inputs, switch, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))


def test_packed_sequences_share_no_kept_state():
    """For any lengths, the states before their chunks have places of their own, and no more."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, 3 * CHUNK, (9,), generator=generator)
        bounds = [0, *lengths.cumsum(0).tolist()]
        places = [
            bounds[s] // CHUNK + s + chunk
            for s in range(9)
            for chunk in range(-(-int(lengths[s]) // CHUNK))
        ]
        assert len(set(places)) == len(places)
        assert max(places) < bounds[-1] // CHUNK + 9


@pytest.mark.parametrize("switch", RANGES)
def test_state_of_one_call_is_where_the_next_goes_on(switch):
    inputs = {name: x.float() for name, x in selective_scan_inputs(1, CHUNK + 4, 3, 2).items()}
    fixed = {name: inputs.pop(name) for name in ("A", "D")}
    start = inputs.pop("initial_state")
    options = {"allow_neg_eigval": switch, "output_final_state": True, "backend": "triton", **fixed}
    y, state = selective_scan(**inputs, initial_state=start, **options)
    for cut in (1, CHUNK - 1, CHUNK):
        head = {name: x[:, :cut] for name, x in inputs.items()}
        tail = {name: x[:, cut:] for name, x in inputs.items()}
        first, middle = selective_scan(**head, initial_state=start, **options)
        second, end = selective_scan(**tail, initial_state=middle, **options)
        assert torch.equal(torch.cat([first, second], 1), y)
        assert torch.equal(end, state)


def test_slices_of_fused_projections_and_other_strides():
    inputs = selective_scan_inputs(2, 5, 3, 2)
    options = {"allow_neg_eigval": True, "backend": "triton"}
    plain = run(selective_scan, inputs, torch.float32, **options)

    def view(name: str, x: torch.Tensor) -> torch.Tensor:
        if name in ("A", "initial_state"):
            return x.mT.contiguous().mT
        if name == "z":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        return x.mT.contiguous().mT if name == "C" else strided(x)

    def op(output_final_state, **leaves):
        views = {name: view(name, x) for name, x in leaves.items()}
        return selective_scan(**views, output_final_state=output_final_state, **options)

    got = run(op, inputs, torch.float32)
    assert all(torch.equal(got[name], plain[name]) for name in plain)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_inputs(dtype, switch):
    inputs = selective_scan_inputs(1, CHUNK + 1, 3, 4)
    inputs = {name: x.to(dtype).double() for name, x in inputs.items()}
    options = {"allow_neg_eigval": switch}
    oracle = run(selective_scan, inputs, torch.float64, backend="naive", **options)
    got = run(selective_scan, inputs, dtype, backend="triton", **options)
    state, expected = got.pop("final_state"), oracle.pop("final_state")
    assert state.dtype == torch.float32
    assert_close(state, expected, 1e-5, "final_state")
    assert {x.dtype for x in got.values()} == {dtype}
    assert_all_close(got, oracle, 2 * torch.finfo(dtype).eps)


def test_dtypes_of_autocast():
    """delta, A, D and the state in float32, the rest in bfloat16: each as it is."""
    wide = ("delta", "A", "D", "initial_state")
    inputs = selective_scan_inputs(1, 5, 3, 2)
    leaves = {
        name: x.to(torch.float32 if name in wide else torch.bfloat16).requires_grad_()
        for name, x in inputs.items()
    }
    y, _ = selective_scan(**leaves, backend="triton")
    assert y.dtype == torch.bfloat16
    grads = torch.autograd.grad(y.float().square().sum(), list(leaves.values()))
    assert [g.dtype for g in grads] == [x.dtype for x in leaves.values()]


@pytest.mark.parametrize("part", [0, 1], ids=["output", "state"])
def test_only_the_output_or_only_the_state_has_a_gradient(part):
    inputs = selective_scan_inputs(1, 5, 3, 2)

    def gradients(dtype, backend):
        leaves = {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}
        results = selective_scan(**leaves, output_final_state=True, backend=backend)
        loss = results[part].square().sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    got = gradients(torch.float32, "triton")
    assert_all_close(got, gradients(torch.float64, "naive"), 2e-6)


def test_nothing_is_kept_without_gradients():
    inputs = {name: x.float() for name, x in selective_scan_inputs(1, 40, 2, 2).items()}
    arguments = [inputs.get(name) for name in ("u", "delta", "A", "B", "C", "D", "z")]
    selective_scan(**inputs, backend="triton")  # defines the operator
    op = torch.ops.statetrack.selective_scan_triton
    y, final, checkpoints = op(*arguments, None, None, False, False, False)
    assert (final.numel(), checkpoints.numel()) == (0, 0)
    kept = op(*arguments, None, None, False, True, True)
    assert kept[2].shape == (3, 2, 2)
    assert torch.equal(y, kept[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_gradients(dtype):
    inputs = selective_scan_inputs(1, 4, 2, 2)

    def second(dtype, backend):
        leaves = [x.to(dtype).requires_grad_() for x in inputs.values()]
        y, state = selective_scan(
            **dict(zip(inputs, leaves, strict=True)), output_final_state=True, backend=backend
        )
        loss = y.double().square().sum() + state.double().square().sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        inner = torch.stack([g.double().square().sum() for g in first]).sum()
        return dict(zip(inputs, torch.autograd.grad(inner, leaves), strict=True))

    inputs = {name: x.to(dtype).double() for name, x in inputs.items()}
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    assert_all_close(second(dtype, "triton"), second(torch.float64, "naive"), tolerance)


def test_compiles_in_both_directions():
    torch.compiler.reset()
    op = partial(selective_scan, allow_neg_eigval=True, backend="triton")
    inputs = selective_scan_inputs(1, 5, 3, 2)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    assert_all_close(run(compiled, inputs, torch.float32), run(op, inputs, torch.float32), 1e-7)


@pytest.mark.parametrize("switch", RANGES)
def test_conforms(switch):
    op = partial(selective_scan, allow_neg_eigval=switch, output_final_state=True)
    inputs = selective_scan_inputs(1, 3, 2, 2)
    definition = partial(op, backend="naive")
    check_op(partial(op, backend="triton"), inputs, definition, title="scan").raise_for_failures()


def test_what_it_refuses(monkeypatch):
    inputs = selective_scan_inputs(1, 3, 2, 2)
    with pytest.raises(UserError, match="triton: it does not compute in float64"):
        selective_scan(**inputs, backend="triton")
    inputs = {name: x.float() for name, x in inputs.items()}
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(UserError, match=r"triton: it needs tensors on a GPU .* got cpu"):
        selective_scan(**inputs, backend="triton")


# ---- one token at a time


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("optional", [True, False], ids=["D-z", "plain"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 9, 5), (1, 33, 17)])
def test_steps_are_the_scan(shape, optional, switch):
    B, D, N = shape
    inputs = selective_scan_inputs(B, 3, D, N, skip=optional, gate=optional)
    oracle, expected = selective_scan(
        **inputs, allow_neg_eigval=switch, output_final_state=True, backend="naive"
    )
    inputs = {name: x.float() for name, x in inputs.items()}
    state = inputs.pop("initial_state")
    shared = {name: inputs.pop(name) for name in ("A", "D") if name in inputs}
    same = state
    for t in range(3):
        token = {name: x[:, t] for name, x in inputs.items()}
        y = selective_scan_step(state, **token, **shared, allow_neg_eigval=switch, backend="triton")
        assert_close(y, oracle[:, t], 2e-6, f"y of token {t}")
    assert state is same
    assert_close(state, expected, 2e-6, "state")


@pytest.mark.parametrize("make", [lambda x: x.bfloat16(), lambda x: x.mT.contiguous().mT])
def test_step_on_any_state_and_strides(make):
    inputs = {
        name: strided(x.float()[:, 0])
        for name, x in selective_scan_inputs(2, 1, 9, 5).items()
        if name in ("u", "delta", "B", "C")
    }
    start, A = draw(3)(2, 9, 5).float(), -torch.ones(9, 5)
    state, expected = make(start.clone()), make(start.clone())
    y = selective_scan_step(state, A=A, **inputs, backend="triton")
    assert_close(y, selective_scan_step(expected, A=A, **inputs, backend="torch"), 1e-6)
    assert_close(state, expected, 1e-6 if state.dtype == torch.float32 else 1e-2)
