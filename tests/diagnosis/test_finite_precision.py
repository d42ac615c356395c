"""Lemma 1 and rounded states, against brute force over all elements of small datatypes."""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from statetrack import ModelConfig, SequenceModel, compile
from statetrack.compiler import theorems
from statetrack.diagnosis import diagnose
from statetrack.diagnosis.finite_precision import (
    DATATYPES,
    Datatype,
    Settled,
    Term,
    find_datatype,
    settle,
)
from statetrack.diagnosis.rounded_states import RoundedOps, find_period, find_rounded_states
from statetrack.errors import UserError
from statetrack.layers import MIXERS

SMALL = ("e2m0", "e2m1", "e3m2", "fp8_e4m3", "fp8_e5m2")


def by_definition(elements: list[Fraction], x: Fraction) -> Fraction:
    """The smallest of the elements that are nearest to x."""
    at = bisect_left(elements, x)
    return min(elements[max(0, at - 1) : at + 1], key=lambda e: (abs(x - e), e))


def power_sum(terms: list[Term], k: int) -> Fraction:
    return sum(
        (Fraction(c) * math.comb(k, m) * Fraction(λ) ** (k - m) for c, λ, m in terms if k >= m),
        Fraction(0),
    )


# -- datatypes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_casts(name: str) -> None:
    datatype = find_datatype(name)
    elements = datatype.elements()
    middles = [(a + b) / 2 for a, b in itertools.pairwise(elements)]
    rng = np.random.default_rng(0)
    others = [Fraction(x) for x in rng.normal(size=300) * 2.0 ** rng.integers(-20, 20, 300)]
    numbers = [*elements, *middles, *others, *(Fraction(n, 3) for n in range(-9, 9))]
    for x in numbers:
        assert datatype.cast(x) == by_definition(elements, x)
        above = by_definition(elements, x + Fraction(1, 10**12))
        assert datatype.cast(x, from_above=True) == above
    floats = np.array(list(map(float, numbers)))
    expected = [float(by_definition(elements, Fraction(x))) for x in floats.tolist()]
    assert datatype.cast_array(floats).tolist() == expected


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32),
                        ("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)]
)  # fmt: skip
def test_the_datatypes_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    """But for ties, which the paper rounds down and torch to even: both are as near."""
    info, datatype = torch.finfo(dtype), DATATYPES[name]
    assert float(datatype.largest) == info.max
    assert 2.0**datatype.low == info.smallest_normal
    x = torch.randn(10_000) * 2.0 ** torch.randint(-12, 6, (10_000,))
    ours, theirs = datatype.cast_array(x.double().numpy()), x.to(dtype).double().numpy()
    np.testing.assert_array_equal(abs(ours - x.double().numpy()), abs(theirs - x.double().numpy()))


def test_unknown_datatypes() -> None:
    with pytest.raises(UserError, match="precision"):
        find_datatype("fp7")
    with pytest.raises(UserError, match="2 to 8 bits of exponent"):
        find_datatype("e9m9")


# -- Lemma 1 --------------------------------------------------------------------------------------

EIGENVALUES = [Fraction(n, 4) for n in (-8, -5, -4, -3, -2, 0, 1, 2, 3, 4, 5)]


@pytest.mark.parametrize("seed", range(40))
def test_lemma_1(seed: int) -> None:
    rng = random.Random(seed)
    datatype = find_datatype(rng.choice(SMALL[:3]))
    elements = datatype.elements()
    terms = [
        Term(Fraction(rng.randint(-8, 8), rng.choice([1, 3, 4])), λ, rng.choice([0, 0, 1, 2]))
        for λ in rng.choices(EIGENVALUES, k=rng.randint(1, 4))
    ]
    found = settle(terms, datatype)
    casts = [by_definition(elements, power_sum(terms, k)) for k in range(found.start + 60)]
    expected = [found.odd if k % 2 else found.even for k in range(len(casts))]
    assert casts[found.start :] == expected[found.start :]
    assert found.start == 0 or casts[found.start - 1] != expected[found.start - 1]
    if all(term.eigenvalue >= 0 for term in terms):
        assert found.even == found.odd


def test_every_pair_of_eigenvalues() -> None:
    datatype = find_datatype("e2m1")
    elements = datatype.elements()
    for λ, μ in itertools.product(EIGENVALUES, repeat=2):
        terms = [Term(1, λ), Term(Fraction(-1, 2), μ, 1)]
        found = settle(terms, datatype)
        for k in range(found.start, found.start + 30):
            cast = by_definition(elements, power_sum(terms, k))
            assert cast == (found.odd if k % 2 else found.even)


def test_a_tie_alternates_for_ever() -> None:
    """1/8 is halfway between 0 and the least positive element; -1/2 approaches it from both sides.

    So an eigenvalue of modulus below 1 can be enough for different values at even and odd k.
    """
    datatype = find_datatype("e2m1")
    least = datatype.elements()[len(datatype.elements()) // 2 + 1]
    found = settle([Term(least / 2, 1), Term(1, Fraction(-1, 2))], datatype)
    assert (found.even, found.odd) == (least, 0)
    assert settle([Term(least / 2, 1)], datatype) == Settled(0, Fraction(0), Fraction(0))


# -- the states of models -------------------------------------------------------------------------


def exact_states(
    datatype: Datatype, A: Any, B: Any, multiply: Callable[[Any, Any], Any] = np.matmul
) -> Any:
    """cast(Σ cast(A_t ... A_{s+1} B_s)) by definition, in fractions; the first state is 0."""
    elements = datatype.elements()
    cast = np.vectorize(lambda x: by_definition(elements, x), otypes=[object])
    states = []
    for t in range(len(A)):
        total = 0
        for s in range(t + 1):
            product = B[s]
            for later in A[s + 1 : t + 1]:
                product = multiply(later, product)
            total = total + cast(product)
        states.append(cast(total))
    return np.array(states, dtype=float)


def fractions(x: Tensor) -> Any:
    return np.vectorize(Fraction, otypes=[object])(x.detach().double().numpy())


def householder_maps(inputs: Any, t: int, head: int, n: int) -> tuple[Any, Any]:
    """A(x_t) and B(x_t) of one head, exactly, from keys, values, betas and the gate."""
    K, V = inputs.k.shape[-1], inputs.v.shape[-1]
    eye = np.array([[Fraction(i == j) for j in range(K)] for i in range(K)], dtype=object)
    A, B = eye, np.full((K, V), Fraction(0), dtype=object)
    if inputs.gate is not None:
        A = A * Fraction(float(inputs.gate.values()[0, t, head]))
    for j in range(t * n, t * n + n):
        k, v = fractions(inputs.k[0, j, head]), fractions(inputs.v[0, j, head])
        beta = Fraction(float(inputs.beta[0, j, head]))
        factor = eye - beta * np.outer(k, k)
        A, B = factor @ A, factor @ B + beta * np.outer(k, v)
    return A, B


@pytest.mark.parametrize("mixer", ["delta_net", "delta_product", "gated_delta_net"])
@pytest.mark.parametrize("word", [[1], [0, 1, 1]])
def test_householder_layers_against_fractions(mixer: str, word: list[int]) -> None:
    tokens, datatype = 12, find_datatype("e3m2")
    model = small_model(mixer, allow_neg_eigval=True, num_heads=2)
    states, layer, x = states_of(model, word, tokens, datatype)
    inputs = layer.op_inputs(x)
    n = layer.config.factors
    for head in range(2):
        maps = [householder_maps(inputs, t, head, n) for t in range(tokens)]
        A, B = zip(*maps, strict=True)
        np.testing.assert_array_equal(states[:, head], exact_states(datatype, A, B))


def small_model(mixer: str, layers: int = 1, hidden_size: int = 4, **options: Any) -> SequenceModel:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=2, hidden_size=hidden_size, num_layers=layers, mixer=MIXERS[mixer](**options)
    )
    return SequenceModel(config).double().requires_grad_(False)


def states_of(
    model: SequenceModel, word: list[int], tokens: int, datatype: Datatype
) -> tuple[Any, Any, Tensor]:
    """The states of the first layer, the layer, and its input."""
    with torch.no_grad():
        repeated = torch.tensor(word).repeat(tokens)[None, :tokens]
        (block,) = model.stack()
        ops = RoundedOps(datatype, len(word))
        x = model.embed(repeated)
        block.mix(x, block.init_state(1), ops)
        return ops.states, block.mixer, block.mixer_input(x)


def test_mamba_against_fractions() -> None:
    tokens, datatype = 10, find_datatype("e3m2")
    model = small_model("mamba", allow_neg_eigval=True, d_state=2)
    states, layer, x = states_of(model, [0, 1], tokens, datatype)
    a = fractions(layer.transitions(x).values[0])  # [T, channels, N]
    u, delta, _, B, *_ = layer.op_inputs(x)
    writes = fractions((delta * u)[0, :, :, None]) * fractions(B[0, :, None])
    expected = exact_states(datatype, a, writes, np.multiply)
    # delta u is rounded to float64, and its factors are not
    np.testing.assert_array_equal(states.reshape(expected.shape), expected)


def test_gla_against_fractions() -> None:
    tokens, datatype = 10, find_datatype("e3m2")
    states, layer, x = states_of(small_model("gla", num_heads=2), [0, 1], tokens, datatype)
    inputs = layer.op_inputs(x)
    a, k, v = (fractions(x[0]) for x in (inputs.gate.values(), inputs.k, inputs.v))
    expected = exact_states(datatype, a[..., None], k[..., None] * v[:, :, None], np.multiply)
    np.testing.assert_array_equal(states, expected)


def test_the_diagonal_rnn_against_fractions() -> None:
    tokens, datatype = 10, find_datatype("e3m2")
    states, layer, x = states_of(small_model("diagonal_rnn"), [0, 1, 1], tokens, datatype)
    a, b, _ = layer.op_inputs(x)
    expected = exact_states(datatype, fractions(a[0]), fractions(b[0]), np.multiply)
    np.testing.assert_array_equal(states, expected)


@pytest.mark.parametrize("precision", ["fp8_e4m3", "fp16", "bf16"])
def test_theorem_1(precision: str) -> None:
    """[0,1]: states become constant, layer by layer; parity is what [-1,1] can do."""
    datatype = find_datatype(precision)
    for mixer in ("delta_net", "gla"):
        model = small_model(mixer, layers=2, hidden_size=8)
        found = find_rounded_states(model, [1], datatype, 256)
        assert [layer.period for layer in found.layers] == [1, 1]
    found = find_rounded_states(compile("parity"), [1], datatype, 64)
    assert [str(layer) for layer in found.layers] == ["period 2 from token 1"]


def test_theorem_2_and_6() -> None:
    """A rotation has other periods, and so have two layers of single reflections."""
    e4m3 = DATATYPES["fp8_e4m3"]
    for m in (3, 4, 5, 7):
        (layer,) = find_rounded_states(theorems.cyclic(m), [1], e4m3, 200).layers
        assert (layer.period, layer.start) == (m, 1)
        layers = find_rounded_states(theorems.theorem6(m), [1], e4m3, 200).layers
        assert [layer.period for layer in layers] == [2, m if m % 2 == 0 else 2 * m]
    net = compile("Z5")
    for word, period in (([1], 5), ([1, 2], 10), ([0], 1)):
        (layer,) = find_rounded_states(net, word, e4m3, 200).layers
        assert layer.period == period


def test_periods() -> None:
    rows = np.array([9, 8, 7, *[1, 2, 3] * 20], dtype=float)[:, None]
    assert (find_period(rows).period, find_period(rows).start) == (3, 4)
    assert find_period(np.arange(40.0)).period is None
    assert str(find_period(np.zeros((8, 2)))) == "constant from token 1"


def test_diagnose_tells_them() -> None:
    found = diagnose(compile("Z3"), "1", precision=["fp8_e4m3", "e2m1"])
    text = found.text()
    assert "In fp8_e4m3 (products and sums rounded once) on 1 1 1 ...: " in text
    assert "layer 0: period 3 from token 1" in text
    assert [r["precision"] for r in found.to_dict()["rounded"]] == ["fp8_e4m3", "e2m1"]
    with pytest.raises(UserError, match="precision"):
        diagnose(compile("Z3"), "1", precision=["fp9"])
