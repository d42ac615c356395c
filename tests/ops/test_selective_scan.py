"""The blocked selective scan against the naive loop in float64, gradients included."""

from __future__ import annotations

import pytest
import torch

from statetrack.ops import selective_scan
from statetrack.ops.selective_scan import blocked, transition
from statetrack.testing.inputs import Tensors
from tests.ops.common import assert_all_close, assert_close, run
from tests.ops.inputs import selective_scan_inputs

SHAPES = [
    pytest.param((B, T, D, N), id=f"B{B}-T{T}-D{D}-N{N}")
    for B, T, D, N in [
        (1, 1, 1, 1),
        (2, 1, 5, 3),
        (1, 2, 1, 7),
        (2, 3, 3, 16),
        (1, 31, 5, 5),
        (2, 32, 1, 1),
        (1, 33, 7, 3),
        (3, 40, 2, 4),
        (1, 63, 3, 33),
        (2, 100, 5, 1),
        (1, 257, 3, 5),
    ]
]
RANGES = [pytest.param(False, id="[0,1]"), pytest.param(True, id="[-1,1]")]
BACKENDS = ["naive", "torch"]


def compare(inputs: Tensors, switch: bool) -> None:
    oracle = run(selective_scan, inputs, torch.float64, allow_neg_eigval=switch, backend="naive")
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        got = run(selective_scan, inputs, dtype, allow_neg_eigval=switch, backend="torch")
        assert_all_close(got, oracle, tolerance)
        assert got["output"].dtype == got["final_state"].dtype == dtype


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_torch_agrees_with_naive(shape, switch):
    compare(selective_scan_inputs(*shape), switch)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("skip", [True, False], ids=["D", "no-D"])
@pytest.mark.parametrize("gate", [True, False], ids=["z", "no-z"])
@pytest.mark.parametrize("start", [True, False], ids=["state", "no-state"])
def test_every_choice_of_optional_arguments(switch, skip, gate, start):
    inputs = selective_scan_inputs(2, 20, 3, 4, skip=skip, gate=gate)
    if not start:
        del inputs["initial_state"]
    compare(inputs, switch)


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("elements", [1, 100, 150, 1000], ids="segments-of-{}-elements".format)
def test_segments_of_long_sequences(monkeypatch, elements, switch):
    """State of 2 x 5 x 3 = 30 numbers: segments of 1, 3, 5 and 33 tokens."""
    monkeypatch.setattr(blocked, "MAX_ELEMENTS", elements)
    compare(selective_scan_inputs(2, 50, 5, 3), switch)


def test_long_sequences_really_go_by_segments(monkeypatch):
    lengths = []
    scan = blocked.linear_scan

    def watched(a, b, h0, **options):
        lengths.append(a.shape[1])
        return scan(a, b, h0, **options)

    monkeypatch.setattr(blocked, "MAX_ELEMENTS", 100)
    monkeypatch.setattr(blocked, "linear_scan", watched)
    selective_scan(**selective_scan_inputs(2, 10, 5, 3), backend="torch")
    assert lengths == [3, 3, 3, 1]


@pytest.mark.parametrize("switch", RANGES)
@pytest.mark.parametrize("delta", [0.0, 1e-6, 2000.0])
def test_the_same_extreme_delta_everywhere(delta, switch):
    inputs = selective_scan_inputs(2, 30, 3, 4)
    inputs["delta"] = torch.full_like(inputs["delta"], delta).float().double()
    compare(inputs, switch)


@pytest.mark.parametrize("switch", RANGES)
def test_4096_tokens(switch):
    compare(selective_scan_inputs(1, 4096, 2, 3), switch)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("switch", RANGES)
def test_delta_zero_leaves_the_state_untouched(backend, switch):
    inputs = selective_scan_inputs(2, 30, 3, 4)
    inputs["delta"] = torch.zeros_like(inputs["delta"])
    _, state = selective_scan(
        **inputs, allow_neg_eigval=switch, output_final_state=True, backend=backend
    )
    assert torch.equal(state, inputs["initial_state"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("switch", RANGES)
def test_very_large_delta_forgets_or_flips_the_sign(backend, switch):
    inputs = selective_scan_inputs(1, 3, 2, 4)
    inputs["delta"] = torch.full_like(inputs["delta"], 1e5)
    inputs["B"] = torch.zeros_like(inputs["B"])  # nothing is written
    _, state = selective_scan(
        **inputs, allow_neg_eigval=switch, output_final_state=True, backend=backend
    )
    assert torch.equal(state, (-1 if switch else 0) * inputs["initial_state"])


def test_transition_covers_its_range_and_no_more():
    delta = torch.tensor([0.0, 1e-3, 1.0, 20.0, 1e5])
    A = -torch.tensor([[1e-3], [1.0], [2.0], [16.0], [1.0]])
    positive, signed = transition(delta, A, False), transition(delta, A, True)
    assert positive.min() == 0
    assert positive.max() == 1
    assert signed.min() == -1
    assert signed.max() == 1
    assert_close(signed, 2 * positive - 1, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("switch", RANGES)
def test_state_of_one_call_is_where_the_next_goes_on(backend, switch):
    inputs = selective_scan_inputs(2, 37, 3, 4)
    fixed = {name: inputs.pop(name) for name in ("A", "D")}
    start = inputs.pop("initial_state")
    options = {"allow_neg_eigval": switch, "output_final_state": True, "backend": backend, **fixed}
    y, state = selective_scan(**inputs, initial_state=start, **options)
    for cut in (1, 6, 18, 36):
        head = {name: x[:, :cut] for name, x in inputs.items()}
        tail = {name: x[:, cut:] for name, x in inputs.items()}
        first, middle = selective_scan(**head, initial_state=start, **options)
        second, end = selective_scan(**tail, initial_state=middle, **options)
        assert_close(torch.cat([first, second], 1), y, 1e-12)
        assert_close(end, state, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_defaults(backend):
    inputs = selective_scan_inputs(2, 20, 3, 4)
    inputs["initial_state"] = torch.zeros_like(inputs["initial_state"])
    y, state = selective_scan(**inputs, allow_neg_eigval=False, backend=backend)
    assert state is None
    del inputs["initial_state"]
    assert_close(selective_scan(**inputs)[0], y, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_stay_as_they_were(backend):
    inputs = selective_scan_inputs(1, 40, 2, 4)
    before = {name: x.clone() for name, x in inputs.items()}
    selective_scan(**inputs, output_final_state=True, backend=backend)
    assert all(torch.equal(before[name], inputs[name]) for name in inputs)
