"""DeltaProduct against its formula, against DeltaNet, and how far its eigenvalues reach."""

from __future__ import annotations

import math

import pytest
import torch

from statetrack.layers import (
    DeltaNetConfig,
    DeltaNetState,
    DeltaProduct,
    DeltaProductConfig,
    HouseholderProduct,
)
from statetrack.testing.inputs import draw, spread, unit, with_exact
from tests.layers import references
from tests.layers.common import assert_same_state, inputs, make_layer
from tests.ops.common import assert_close


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 3, "num_householder": 1},
        {"num_heads": 2, "expand_k": 0.5, "expand_v": 2.0, "output_gate": True},
        {"num_heads": 1, "num_v_heads": 2, "num_householder": 3, "output_norm_eps": 0.1},
    ],
    ids=["one-factor", "two-factors-gated-output", "three-factors-shared-keys"],
)
@pytest.mark.parametrize("conv_size", [4, 0])
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_forward_is_the_formula(switch, conv_size, options):
    layer = make_layer(DeltaProductConfig(switch, conv_size=conv_size, **options))
    x = inputs(2, 11)
    y, state = layer(x)
    assert isinstance(state, DeltaNetState)
    for row in range(2):
        expected, S = references.delta_layer(layer, x[row])
        assert_close(y[row], expected, 1e-11)
        assert_close(state.S[row], S, 1e-11)


def factor(layer: DeltaProduct, j: int) -> dict[str, torch.Tensor]:
    """The weights of the DeltaNet that has this layer's j-th factor alone."""
    n, state = layer.config.num_householder, layer.state_dict()
    keys, values = layer.sizes[0], layer.sizes[2] // n
    for name in ("qkv_proj.weight", "conv.weight"):
        parts = state[name].split([keys] * (1 + n) + [values] * n)
        state[name] = torch.cat([parts[0], parts[1 + j], parts[1 + n + j]])
    state["beta.proj.weight"] = state["beta.proj.weight"].unflatten(0, (n, -1))[j]
    return state


@pytest.mark.parametrize(("n", "j"), [(1, 0), (2, 0), (2, 1), (3, 1)])
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_factors_with_beta_0_are_as_if_they_were_not_there(switch, n, j):
    layer = make_layer(DeltaProductConfig(switch, num_heads=3, num_householder=n))
    x = inputs(2, 40)
    x[..., 0] = 1.0
    with torch.no_grad():
        for other in set(range(n)) - {j}:
            weight = layer.beta.proj.weight.unflatten(0, (n, -1))[other]
            weight.zero_()[:, 0] = -1e3  # the sigmoid of that is 0
    alone = make_layer(DeltaNetConfig(switch, num_heads=3))
    alone.load_state_dict(factor(layer, j))
    (y, end), (expected, expected_end) = layer(x), alone(x)
    assert_close(y, expected, 1e-11)
    assert_close(end.S, expected_end.S, 1e-11)
    if n == 1:
        assert_same_state(end, expected_end)


def test_the_first_factor_acts_first():
    layer = make_layer(DeltaProductConfig(True, num_heads=1, num_householder=2))
    x = inputs(1, 3)
    first, second = (make_layer(DeltaNetConfig(True, num_heads=1)) for _ in range(2))
    first.load_state_dict(factor(layer, 0))
    second.load_state_dict(factor(layer, 1))
    one, two = (part.transitions(x).dense() for part in (first, second))
    assert_close(layer.transitions(x).dense(), two @ one, 1e-12)
    assert (two @ one - one @ two).abs().max() > 1e-3


def test_initialisation():
    """Each factor's projections are drawn as DeltaNet's are."""
    torch.manual_seed(0)
    layer = DeltaProduct(128, num_householder=3)
    weights = layer.qkv_proj.weight.detach().split([128] * 7)
    betas = layer.beta.proj.weight.detach().split([4] * 3)
    for weight in (*weights, *betas, layer.o_proj.weight.detach()):
        bound = 2**-2.5 * math.sqrt(6 / sum(weight.shape))
        assert 0.98 * bound < weight.abs().max() <= bound
        assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert {name for name, _ in layer.named_parameters()} == {
        *("qkv_proj.weight", "conv.weight", "beta.proj.weight", "norm.weight", "o_proj.weight")
    }


def products(n: int, count: int, size: int, seed: int = 0) -> HouseholderProduct:
    """Random products of n factors with beta in [0, 1], its ends included."""
    normal = draw(seed)
    beta = with_exact(spread(normal(count, n), 0.0, 1.0), 1.0, 1.0, 0.0)
    bounds = DeltaProductConfig(num_householder=n).bounds
    return HouseholderProduct(None, unit(normal(count, n, size)), beta, bounds)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_bounds_without_the_switch_hold(n, size):
    product = products(n, 5000, size)
    low, high = product.bounds
    values = product.eigvals()
    assert values.real.min() >= low - 1e-7
    assert values.real.max() <= high + 1e-7
    if n <= 2:
        assert values.imag.abs().max() < 1e-6
    else:
        assert values.real.min() < low / 4


@pytest.mark.parametrize("n", [3, 4, 6, 10])
def test_bounds_without_the_switch_are_reached(n):
    """Projections on n lines, each a n-th of a half turn further."""
    angles = torch.arange(n).double() * math.pi / n
    k = torch.stack([angles.cos(), angles.sin()], -1)[None]
    low, _ = DeltaProductConfig(num_householder=n).bounds
    product = HouseholderProduct(None, k, torch.ones(1, n).double(), (low, 1.0))
    assert float(product.eigvals().real.min()) == pytest.approx(low, abs=1e-12)
    assert {3: -1 / 8, 4: -1 / 4}.get(n, low) == pytest.approx(low, abs=1e-12)


def test_a_search_ends_at_the_bound():
    """Random steps downhill, from random factors in three dimensions: to -1/8 and not past it."""
    normal = draw(0)

    def lowest(k, beta):
        values = HouseholderProduct(None, unit(k), beta.clamp(0, 1), (-1.0, 1.0)).eigvals()
        return values.real.min(-1).values

    k, beta = normal(50, 3, 3), spread(normal(50, 3), 0.0, 1.0)
    least = lowest(k, beta)
    for step in range(400):
        size = 0.3 * 0.99**step
        new_k, new_beta = k + size * normal(50, 3, 3), beta + size * normal(50, 3)
        new = lowest(new_k, new_beta)
        better = new < least
        k[better], beta[better], least[better] = new_k[better], new_beta[better], new[better]
    assert -0.125 - 1e-7 <= least.min() < -0.124


def test_a_rotation_with_the_switch():
    layer = make_layer(DeltaProductConfig(True, num_heads=1))
    with torch.no_grad():
        layer.beta.proj.weight.fill_(1e3)
    x = inputs(1, 200).abs()
    transition = layer.transitions(x)
    assert transition.beta.min() == 2
    values = transition.eigvals()
    assert_close(values.abs(), torch.ones(values.shape), 1e-4)  # keys have length 1 - 1e-6 / 2
    assert values.imag.max() > 0.5


def test_title():
    assert DeltaProductConfig().title == "DeltaProduct [0,1], n = 2"
    assert DeltaProductConfig(True, num_householder=3).title == "DeltaProduct [-1,1], n = 3"
