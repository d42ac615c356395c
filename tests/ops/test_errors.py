"""What a caller can get wrong, and that the message names it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from statetrack.errors import UserError
from statetrack.ops import delta_rule, selective_scan
from tests.ops.inputs import delta_rule_inputs, selective_scan_inputs

B, T, H, K, V = 2, 5, 3, 4, 7
D, N = 3, 4


def arguments(op, **changes):
    """Correct arguments, but for `changes`."""
    if op is delta_rule:
        inputs = delta_rule_inputs(B, T, H, K, V)
    else:
        inputs = selective_scan_inputs(B, T, D, N)
    return {**inputs, **changes}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("q", (B, T, H * K)),
        ("q", (B, T, H, K, 1)),
        ("k", (B, T, H, K + 1)),
        ("k", (B, T, H)),
        ("k", (1, T, H, K)),
        ("v", (B, T + 1, H, V)),
        ("v", (B, T, V)),
        ("beta", (B, T, H, 1)),
        ("beta", (B, T, 1)),
        ("g", (B, T, H, K)),
        ("g", (B, T)),
        ("decay", (B, T, 1)),
        ("initial_state", (B, H, V, K)),
        ("initial_state", (1, H, K, V)),
    ],
)
def test_shapes_of_the_delta_rule(name, shape):
    with pytest.raises(UserError, match=rf"\b{name} must") as caught:
        delta_rule(**arguments(delta_rule, **{name: torch.zeros(shape)}))
    assert str(list(shape)) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("u", (T, D)),
        ("delta", (B, T, D + 1)),
        ("delta", (B, 1, D)),
        ("A", (D,)),
        ("A", (D + 1, N)),
        ("A", (D, 0)),
        ("B", (B, T, N + 1)),
        ("B", (B, T, D, N)),
        ("C", (B, T)),
        ("C", (1, T, N)),
        ("D", (1,)),
        ("D", (D, N)),
        ("z", (B, T, 1)),
        ("initial_state", (B, N, D)),
        ("initial_state", (B + 1, D, N)),
    ],
)
def test_shapes_of_the_scan(name, shape):
    with pytest.raises(UserError, match=rf"\b{name} must") as caught:
        selective_scan(**arguments(selective_scan, **{name: torch.zeros(shape)}))
    assert str(list(shape)) in str(caught.value)


@pytest.mark.parametrize("op", [delta_rule, selective_scan])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_empty_tensors(op, dim):
    first = "q" if op is delta_rule else "u"
    shape = list(arguments(op)[first].shape)
    shape[dim] = 0
    with pytest.raises(UserError, match=rf"\b{first} must be .* none of them 0"):
        op(**arguments(op, **{first: torch.zeros(shape)}))


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *((delta_rule, name) for name in ("q", "k", "v", "beta", "initial_state")),
        *((selective_scan, name) for name in arguments(selective_scan)),
    ],
)
def test_tensors_of_whole_numbers(op, name):
    inputs = arguments(op)
    inputs[name] = inputs[name].long()
    with pytest.raises(UserError, match=rf"\b{name} must be a floating-point tensor.*int64"):
        op(**inputs)


@pytest.mark.parametrize("name", ["g", "decay"])
def test_gates_of_whole_numbers(name):
    gate = torch.ones(B, T, H, dtype=torch.int64)
    with pytest.raises(UserError, match=rf"\b{name} must be a floating-point tensor"):
        delta_rule(**arguments(delta_rule, **{name: gate}))


def test_both_gates():
    gate = torch.zeros(B, T, H)
    with pytest.raises(UserError, match=r"\bg\b.*\bdecay\b.*not both"):
        delta_rule(**arguments(delta_rule, g=gate, decay=gate))


@pytest.mark.parametrize("op", [delta_rule, selective_scan])
@pytest.mark.parametrize("backend", ["cuda", "", "Naive"])
def test_unknown_backends(op, backend):
    message = f"{op.__name__} has no backend '{backend}'; it has: auto, naive, torch"
    with pytest.raises(UserError, match=message):
        op(**arguments(op), backend=backend)


@pytest.mark.parametrize("backend", ["naive", "torch"])
@pytest.mark.parametrize("op", [delta_rule, selective_scan])
@pytest.mark.parametrize(
    "cu_seqlens",
    [
        pytest.param([1, T], id="not-from-0"),
        pytest.param([0, 4, 2, T], id="decreasing"),
        pytest.param([0, 2, 2, T], id="empty-sequence"),
        pytest.param([0, 3, T - 1], id="too-short"),
        pytest.param([0, 3, T + 1], id="too-long"),
        pytest.param([0], id="no-sequence"),
        pytest.param([], id="empty"),
        pytest.param(5, id="0-d"),
        pytest.param([[0, T]], id="2-d"),
        pytest.param([0.0, 3.0, T], id="float"),
    ],
)
def test_bad_cu_seqlens(op, cu_seqlens, backend):
    inputs = arguments(op)
    del inputs["initial_state"]
    packed = {name: x if name in ("A", "D") else x[:1] for name, x in inputs.items()}
    dtype = None if cu_seqlens else torch.int64
    with pytest.raises(UserError, match="cu_seqlens must"):
        op(**packed, cu_seqlens=torch.tensor(cu_seqlens, dtype=dtype), backend=backend)


@pytest.mark.parametrize("backend", ["naive", "torch"])
@pytest.mark.parametrize("op", [delta_rule, selective_scan])
def test_cu_seqlens_with_several_rows(op, backend):
    inputs = arguments(op)
    del inputs["initial_state"]
    with pytest.raises(UserError, match=f"cu_seqlens .* batch must be 1, got {B}"):
        op(**inputs, cu_seqlens=torch.tensor([0, T]), backend=backend)


@pytest.mark.parametrize("op", [delta_rule, selective_scan])
def test_cu_seqlens_with_a_state_for_another_number_of_sequences(op):
    inputs = arguments(op)
    packed = {name: x if name in ("A", "D") else x[:1] for name, x in inputs.items()}
    with pytest.raises(UserError, match="initial_state must"):
        op(**packed, cu_seqlens=torch.tensor([0, 2, T]))


def test_a_mistake_is_also_a_value_error():
    with pytest.raises(ValueError, match="beta must"):
        delta_rule(**arguments(delta_rule, beta=torch.zeros(1)))


@pytest.mark.parametrize(
    ("op", "name", "wrong", "got"),
    [
        (delta_rule, "q", np.zeros((B, T, H, K)), "ndarray"),
        (delta_rule, "beta", None, "NoneType"),  # else it would be linear attention
        (delta_rule, "initial_state", [1], "list"),
        (selective_scan, "u", 5, "int"),
        (selective_scan, "A", torch.eye(D).to_sparse(), "torch.sparse_coo"),
    ],
)
def test_what_is_no_tensor(op, name, wrong, got):
    with pytest.raises(UserError, match=rf"{name} must be a dense tensor; got {got}"):
        op(**arguments(op, **{name: wrong}))
