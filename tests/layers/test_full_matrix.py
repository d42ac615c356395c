"""The full matrix against the protocol's text, its products, its options."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import FullMatrix, FullMatrixConfig, FullMatrixState
from statetrack.layers.full_matrix import products_blocked, products_naive
from statetrack.testing.inputs import draw
from tests.layers.common import HIDDEN, inputs, make_layer
from tests.ops.common import assert_close

ONE_HOT = torch.eye(HIDDEN).double()


def read(layer: FullMatrix, H: torch.Tensor) -> torch.Tensor:
    flat = H.detach().reshape(-1)
    return layer.out_proj.weight @ (flat / max(1.0, float(flat.norm()))) + layer.out_proj.bias


@pytest.mark.parametrize("size", [1, 3, 4])
def test_one_hot_tokens_are_the_protocol(size):
    layer = make_layer(FullMatrixConfig(size=size))
    tokens = torch.randint(HIDDEN, (2, 20), generator=torch.Generator().manual_seed(0))
    y, state = layer(ONE_HOT[tokens])
    assert isinstance(state, FullMatrixState)
    for n in range(2):
        H = torch.eye(size).double()
        for t, token in enumerate(tokens[n]):
            H = layer.A[token] @ H
            assert_close(y[n, t], read(layer, H), 1e-11)
        assert_close(state.E[n] + torch.eye(size), H, 1e-11)


def test_any_input_mixes_the_matrices():
    layer = make_layer(FullMatrixConfig(size=3))
    x, identity = inputs(1, 6), torch.eye(3).double()
    H = identity
    for t in range(6):
        A = identity + sum(x[0, t, i] * (layer.A[i] - identity) for i in range(HIDDEN))
        H = A @ H
        assert_close(layer.transitions(x).dense()[0, t, 0], A, 1e-12)
    y, _ = layer(x)
    assert_close(y[0, -1], read(layer, H), 1e-11)


def test_inside_the_ball_nothing_is_projected():
    layer = make_layer(FullMatrixConfig(size=3))
    with torch.no_grad():
        layer.A[0] = torch.eye(3) / 8
    y, _ = layer(ONE_HOT[None, :1])
    assert_close(y[0, 0], layer.out_proj(torch.eye(3).double().flatten() / 8), 1e-12)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33, 100])
def test_blocks_are_the_loop(length):
    normal = draw(length)
    D, E = 0.3 * normal(2, length, 1, 4, 4), normal(2, 1, 4, 4)
    weights = normal(2, length, 1, 4, 4)
    results = []
    for form in (products_naive, products_blocked):
        leaves = [x.clone().requires_grad_() for x in (D, E)]
        out = form(*leaves)
        scaled = out / out.detach().norm(dim=(-1, -2), keepdim=True)
        results.append([out, *torch.autograd.grad((weights * scaled).sum(), leaves)])
    for actual, expected in zip(*reversed(results), strict=True):
        assert_close(actual, expected, 1e-11)


def test_products_that_grow():
    """What is read stays finite, and is right, until the state itself overflows."""
    layer = FullMatrix(2, size=3)
    with torch.no_grad():
        layer.A.copy_(3.0 * torch.eye(3))
    x = torch.tensor([1.0, 0.0]).expand(1, 75, 2).clone().requires_grad_()
    y, state = layer(x)
    assert 1e35 < state.E.max() < torch.inf
    expected = layer.out_proj((torch.eye(3) / 3**0.5).flatten())
    assert_close(y[0, -1], expected, 1e-5)
    (gradient,) = torch.autograd.grad(y[0, -1].sum(), x)
    assert gradient.isfinite().all()


def test_permutation_matrices_track_a_group():
    """All of S3 at once, exactly, over a thousand tokens."""
    elements = [torch.eye(3)[list(p)] for p in permutations(range(3))]
    layer = FullMatrix(6, size=3)
    with torch.no_grad():
        layer.A.copy_(torch.stack(elements))
    tokens = torch.randint(6, (1000,), generator=torch.Generator().manual_seed(0))
    _, state = layer(torch.eye(6)[tokens][None])
    H = torch.eye(3)
    for token in tokens:
        H = elements[token] @ H
    assert torch.equal(state.E[0] + torch.eye(3), H)


def test_the_state_is_float32_whatever_the_weights():
    layer = FullMatrix(HIDDEN, size=3).bfloat16()
    y, state = layer(inputs(1, 40).bfloat16())
    assert (y.dtype, state.E.dtype) == (torch.bfloat16, torch.float32)


def test_initialisation():
    torch.manual_seed(0)
    layer = FullMatrix(40)
    noise = (layer.A - torch.eye(32)).detach()
    assert float(noise.std()) == pytest.approx(0.02, rel=0.05)
    assert abs(float(noise.mean())) < 1e-3


def test_parameters():
    layer = FullMatrix(10, size=4)
    assert {name: list(p.shape) for name, p in layer.named_parameters()} == {
        "A": [10, 4, 4],
        "out_proj.weight": [10, 16],
        "out_proj.bias": [10],
    }


def test_title():
    assert FullMatrixConfig().title == "Full matrix"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "size must be"),
        ({"allow_neg_eigval": True}, "Full matrix has no allow_neg_eigval: its matrices are free"),
    ],
)
def test_bad_values(options, said):
    with pytest.raises(UserError, match=said):
        FullMatrixConfig(**options)
