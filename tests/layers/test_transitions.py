"""`transitions` tells the truth: its matrices are those of the recurrence, its spectrum theirs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statetrack.layers import (
    DeltaNetConfig,
    Dense,
    Diagonal,
    Guarantee,
    HouseholderProduct,
    MambaConfig,
    Transition,
)
from statetrack.testing.inputs import draw, spread, unit
from tests.layers.common import LINEAR, inputs, linear_state, make_layer, make_state
from tests.layers.references import delta_net_parts, mamba_parts
from tests.ops.common import assert_close

T = 6


def assert_same_spectrum(transition: Transition, tolerance: float = 1e-6) -> None:
    """Sums of powers and each value: .eigvals() are the eigenvalues of .dense()."""
    values, matrices = transition.eigvals(), transition.dense()
    assert values.is_complex()
    assert values.shape == matrices.shape[:-1]
    expected = torch.linalg.eigvals(matrices)
    distances = (values[..., :, None] - expected[..., None, :]).abs()
    assert distances.min(-1).values.max() < tolerance  # each of ours is one of theirs
    assert distances.min(-2).values.max() < tolerance  # and the reverse
    power = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    for n in (1, 2, 3):  # and each as often
        power = power @ matrices
        trace = power.diagonal(dim1=-2, dim2=-1).sum(-1)
        assert_close(
            torch.view_as_real((values**n).sum(-1) - trace), torch.zeros(*trace.shape, 2), 1e-9
        )


def assert_within_bounds(transition: Transition) -> None:
    low, high = transition.bounds
    real = transition.eigvals().real
    assert real.min() >= low - 1e-6
    assert real.max() <= high + 1e-6


@pytest.mark.parametrize("config", LINEAR)
def test_products_of_transitions_carry_the_state(config):
    """The state is affine in the first one; its linear part must be A_t ... A_1."""
    layer = make_layer(config)
    x, zero = inputs(2, T), layer.init_state(2)
    start = type(zero)(make_state(layer, 2)[0], *zero[1:])  # a convolution starts from nothing
    dense = layer.transitions(x).dense()  # [B, T, H, K, K], or [B, T, D, N, N]
    difference = start[0].reshape(*dense.shape[:1], *dense.shape[2:4], -1)
    for t in range(T):
        difference = dense[:, t] @ difference
        _, with_start = layer(x[:, : t + 1], start)
        _, without = layer(x[:, : t + 1], zero)
        change = linear_state(with_start) - linear_state(without)
        assert_close(change.reshape(difference.shape), difference, 1e-11)


@pytest.mark.parametrize("conv_size", [0, 4])
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_delta_net_is_its_transitions_and_its_writes(switch, conv_size):
    layer = make_layer(DeltaNetConfig(switch, num_heads=3, conv_size=conv_size))
    x = inputs(1, T)
    A = layer.transitions(x).dense()[0]
    _, k, v, beta = delta_net_parts(layer, x[0])
    S = torch.zeros(3, 4, 4).double()
    for t in range(T):
        S = A[t] @ S + torch.einsum("h,hk,hv->hkv", beta[t], k[t], v[t])
        assert_close(layer(x[:, : t + 1])[1].S[0], S, 1e-12)


@pytest.mark.parametrize("conv_size", [0, 4])
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_mamba_is_its_transitions_and_its_writes(switch, conv_size):
    layer = make_layer(MambaConfig(switch, d_state=3, conv_size=conv_size))
    x = inputs(1, T)
    a = layer.transitions(x).values[0]
    u, delta, _, B, _ = mamba_parts(layer, x[0])
    h = torch.zeros(24, 3).double()
    for t in range(T):
        h = a[t] * h + torch.einsum("d,n->dn", delta[t] * u[t], B[t])
        assert_close(layer(x[:, : t + 1])[1].h[0], h, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_reach_of_delta_net(switch, dtype):
    layer = make_layer(DeltaNetConfig(switch, num_heads=3)).to(dtype)
    with torch.no_grad():
        layer.beta.proj.weight *= 1e3
    transition = layer.transitions(10 * inputs(4, 50).to(dtype))
    least = transition.eigvals().real.min()
    assert_within_bounds(transition)
    assert least < (-0.9 if switch else 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_reach_of_mamba(switch, dtype):
    layer = make_layer(MambaConfig(switch)).to(dtype)
    with torch.no_grad():
        layer.dt_proj.bias.copy_(torch.linspace(-50, 50, len(layer.dt_proj.bias)))
    transition = layer.transitions(inputs(4, 50).to(dtype))
    values = transition.eigvals().real
    assert_within_bounds(transition)
    assert values.min() < (-0.9 if switch else 0.1)
    assert values.max() > 0.9


def householders(factors: int, *, decay: bool, size: int = 4) -> HouseholderProduct:
    normal = draw(factors)
    gate = spread(normal(2, 3, 2), -1.0, 1.0) if decay else None
    k = unit(normal(2, 3, 2, factors, size))
    return HouseholderProduct(gate, k, spread(normal(2, 3, 2, factors), 0.0, 2.0), (-1.0, 1.0))


@pytest.mark.parametrize("decay", [False, True], ids=["no-decay", "decay"])
@pytest.mark.parametrize("factors", [1, 2, 3, 5])
def test_householder_products(factors, decay):
    product = householders(factors, decay=decay)
    dense = product.dense()
    for place in [(0, 0, 0), (1, 2, 1)]:
        expected = torch.eye(4).double()
        for k, beta in zip(product.k[place], product.beta[place], strict=True):
            expected = (torch.eye(4) - beta * torch.outer(k, k)) @ expected
        if decay:
            expected = product.decay[place] * expected
        assert_close(dense[place], expected, 1e-12)
    x = draw(1)(2, 3, 2, 4, 5)
    assert_close(product.apply(x), dense @ x, 1e-12)
    assert_same_spectrum(product)
    assert_within_bounds(product)


def test_two_reflections_are_a_rotation():
    """By 90 degrees: eigenvalues i and -i, and the order of the factors decides its sense."""
    half = torch.tensor(0.5).double().sqrt()
    k = torch.tensor([[1.0, 0.0], [half, half]]).double()
    beta = torch.full((2,), 2.0).double()
    turn = HouseholderProduct(None, k[None], beta[None], (-1.0, 1.0))
    back = HouseholderProduct(None, k.flip(0)[None], beta[None], (-1.0, 1.0))
    assert_close(turn.dense()[0], torch.tensor([[0.0, -1.0], [1.0, 0.0]]), 1e-12)
    assert_close(back.dense(), turn.dense().mT, 1e-12)
    assert_close(turn.eigvals().imag.sort().values[0], torch.tensor([-1.0, 1.0]), 1e-12)


def test_diagonal():
    values = draw(0)(2, 3, 5, 4)
    diagonal = Diagonal(values, (-torch.inf, torch.inf))
    assert torch.equal(diagonal.dense() @ torch.ones(4).double(), values)
    assert torch.equal(diagonal.eigvals().real, values)
    assert_same_spectrum(diagonal)


def test_dense():
    matrices: Tensor = draw(0)(2, 3, 4, 4)
    dense = Dense(matrices)
    assert torch.equal(dense.dense(), matrices)
    assert dense.eigvals().imag.abs().max() > 0.1  # a general matrix turns, too
    assert_same_spectrum(dense)
    assert_within_bounds(dense)


@pytest.mark.parametrize("config", LINEAR)
def test_transitions_in_bfloat16(config):
    layer = make_layer(config)
    exact = layer.transitions(inputs(1, T))
    rough = layer.bfloat16().transitions(inputs(1, T).bfloat16())
    assert_close(rough.dense().float(), exact.dense(), 0.1)
    order = exact.eigvals().real.sort().values
    assert_close(rough.eigvals().real.sort().values, order, 0.1)


def test_a_declared_guarantee() -> None:
    matrices = torch.eye(2).expand(1, 3, 2, 2)
    assert Dense(matrices).guarantee() is Guarantee.NONE
    declared = Dense(matrices, guarantee=Guarantee.REAL)
    assert declared.guarantee() is declared.guarantee(3) is Guarantee.REAL
    assert declared[:, :2].guarantee() is Guarantee.REAL
    assert declared[:, :2].shape == (1, 2, 2)
    with pytest.raises(ValueError, match="sometimes"):
        Dense(matrices, guarantee="sometimes")
