"""Guarantees hold for whatever is drawn, and verdicts say neither more nor less."""

from __future__ import annotations

import math

import pytest
import torch

from statetrack.diagnosis import Kind, diagnose
from statetrack.diagnosis.spectrum import Extremes, decay_length, overflow_length
from statetrack.layers import (
    DeltaNetConfig,
    Dense,
    Diagonal,
    Guarantee,
    HouseholderProduct,
    MambaConfig,
)
from statetrack.models import ModelConfig, SequenceModel
from statetrack.testing.inputs import draw, unit
from tests.diagnosis.constructed import Constructed, rotation, scalar

BITS = ("0", "1")
BETA = {"[0,1]": (1.0, 0.0), "[-1,1]": (2.0, -1.0)}  # the greatest beta, the least eigenvalue


def householders(factors: int, span: str, decay: bool, count: int = 420) -> HouseholderProduct:
    """Random ones in the plane, where products turn most easily, betas often at their ends."""
    top, low = BETA[span]
    normal = draw(factors)
    k = unit(normal(1, count, 1, factors, 2))
    beta = (top * (0.5 + normal(1, count, 1, factors))).clamp(0, top)
    gate = (0.5 + normal(1, count, 1)).clamp(0, 1) if decay else None
    if span == "[0,1]" and factors >= 3:
        low = -(math.cos(math.pi / factors) ** factors)
    return HouseholderProduct(gate, k, beta, (low, 1.0))


@pytest.mark.parametrize("decay", [False, True], ids=["no-decay", "decay"])
@pytest.mark.parametrize(
    ("span", "factors", "length", "guarantee"),
    [
        ("[0,1]", 1, 1, Guarantee.NON_NEGATIVE),
        ("[0,1]", 1, 2, Guarantee.NON_NEGATIVE),
        ("[0,1]", 2, 1, Guarantee.NON_NEGATIVE),
        ("[0,1]", 1, 3, Guarantee.FADING),
        ("[0,1]", 2, 2, Guarantee.FADING),
        ("[0,1]", 3, 1, Guarantee.FADING),
        ("[-1,1]", 1, 1, Guarantee.REAL),
        ("[-1,1]", 1, 2, Guarantee.NONE),
        ("[-1,1]", 2, 1, Guarantee.NONE),
    ],
)
def test_guarantees_of_householder_products(span, factors, length, guarantee, decay):
    """Each holds for random products, and no stronger one would."""
    transition = householders(factors, span, decay)
    assert transition.guarantee(length) is guarantee
    dense = transition.dense()[0, :, 0].unflatten(0, (-1, length))
    product = torch.eye(2).double()
    for t in range(length):
        product = dense[:, t] @ product
    values = torch.linalg.eigvals(product)
    imag, least = values.imag.abs().max(), values.real.min()
    if guarantee is Guarantee.NON_NEGATIVE:
        assert imag < 1e-7
        assert least > -1e-7
    elif guarantee is Guarantee.FADING:
        lasting = values[values.abs() > 1 - 1e-9]
        assert (lasting - 1).abs().max() < 1e-6
        assert imag > 1e-4 or least < -1e-4
    elif guarantee is Guarantee.REAL:
        assert imag == 0
        assert least < -0.9
    else:
        assert imag > 0.5


def test_three_projectors_have_a_negative_eigenvalue():
    """That eigenvalues stay in [0, 1] ends with two factors (Proposition 1.3, final version)."""
    angles = torch.tensor([0.0, math.pi / 3, 2 * math.pi / 3]).double()
    k = torch.stack([angles.cos(), angles.sin()], -1)[None, None, None]
    low = -(math.cos(math.pi / 3) ** 3)
    product = HouseholderProduct(None, k, torch.ones(1, 1, 1, 3).double(), (low, 1.0))
    assert product.eigvals().real.min() == pytest.approx(-1 / 8)
    assert product.guarantee() is Guarantee.FADING


def test_guarantees_of_other_forms():
    values = torch.zeros(1, 1, 1, 2)
    for length in (1, 2, 7):
        assert Diagonal(values, (0.0, 1.0)).guarantee(length) is Guarantee.NON_NEGATIVE
        assert Diagonal(values, (0.0, math.inf)).guarantee(length) is Guarantee.NON_NEGATIVE
        assert Diagonal(values, (-1.0, 1.0)).guarantee(length) is Guarantee.REAL
        assert Dense(torch.eye(2)).guarantee(length) is Guarantee.NONE


def test_transitions_of_some_tokens():
    for whole in (
        householders(2, "[-1,1]", True),
        Diagonal(draw(0)(2, 5, 3, 4), (-1.0, 1.0)),
        Dense(draw(0)(2, 5, 3, 4, 4)),
    ):
        part = whole[0, 1:4]
        assert type(part) is type(whole)
        assert part.bounds == whole.bounds
        assert torch.equal(part.dense(), whole.dense()[0, 1:4])
        assert torch.equal(whole[0, 2].dense(), whole.dense()[0, 2])


# -- architectures --------------------------------------------------------------------------------


def model(mixer, num_layers: int) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(
        ModelConfig(vocab_size=3, hidden_size=8, num_layers=num_layers, mixer=mixer, mlp="none")
    )


def excluded(found, kind: Kind) -> list[int]:
    return [m for m in range(2, 10) if found.verdict(m).kind is kind]


@pytest.mark.parametrize(
    ("mixer", "layers", "factor"),
    [
        pytest.param(DeltaNetConfig(num_heads=2), 3, 1, id="delta_net-[0,1]"),
        pytest.param(MambaConfig(), 2, 1, id="mamba-[0,1]"),
        pytest.param(MambaConfig(allow_neg_eigval=True), 1, 2, id="mamba-[-1,1]-1"),
        pytest.param(MambaConfig(allow_neg_eigval=True), 2, 4, id="mamba-[-1,1]-2"),
        pytest.param(DeltaNetConfig(allow_neg_eigval=True, num_heads=2), 1, 2, id="delta_net-1"),
        pytest.param(DeltaNetConfig(allow_neg_eigval=True, num_heads=2), 2, None, id="delta_net-2"),
        pytest.param(
            (MambaConfig(), DeltaNetConfig(allow_neg_eigval=True, num_heads=2)), 2, 2,
            id="positive mamba, then delta_net",
        ),
        pytest.param(
            (MambaConfig(allow_neg_eigval=True), DeltaNetConfig(num_heads=2)), 2, 2,
            id="mamba, then positive delta_net",
        ),
    ],
)  # fmt: skip
def test_what_the_architecture_excludes(mixer, layers, factor):
    found = diagnose(model(mixer, layers), "1")
    assert found.architectural.factor == factor
    expected = [] if factor is None else [m for m in range(2, 10) if factor % m]
    assert excluded(found, Kind.ARCHITECTURAL) == expected


def test_longer_words_leave_less_to_say():
    """Two symmetric matrices may turn: of words of two tokens DeltaNet [-1,1] has no claim."""
    two = model(DeltaNetConfig(allow_neg_eigval=True, num_heads=2), 1)
    assert diagnose(two, "1").architectural.factor == 2
    assert diagnose(two, "1 2").architectural.factor is None
    positive = model(DeltaNetConfig(num_heads=2), 1)
    found = diagnose(positive, "1 2 1")
    assert found.architectural.factor == 1
    assert "modulus below 1" in found.verdict(2).text


def test_the_model_stays_as_it_is():
    mine = model(DeltaNetConfig(num_heads=2), 1).train()
    before = {name: p.clone() for name, p in mine.named_parameters()}
    state = torch.random.get_rng_state()
    diagnose(mine, "1")
    assert mine.training
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, p in mine.named_parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, before[name])


# -- how long it lasts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "tokens"), [(-0.9, 59), (-0.98, 309), (-0.99, 621), (-0.999, 6235)]
)
def test_a_negative_eigenvalue_above_minus_one_fades(value, tokens):
    found = diagnose(Constructed(scalar(value)), "1", vocab=BITS)
    verdict = found.verdict(2)
    assert verdict.kind is Kind.PROBED  # the architecture could, these weights cannot
    assert f"along the word lasts {tokens:,} tokens in bf16" in verdict.text
    assert found.layers[0].spectrum is not None
    assert round(found.layers[0].spectrum.total.decay_length("bf16")) == tokens


def test_decay_lengths_by_multiplication():
    """T is where |l|^T is half a unit in the last place of 1: the last step that still counts."""
    for modulus in (0.3, 0.9, 0.999):
        for precision, digits in (("bf16", 9), ("fp32", 24)):
            assert modulus ** decay_length(modulus, precision) == pytest.approx(2.0**-digits)
    assert decay_length(1.0, "bf16") == math.inf
    assert decay_length(0.0, "bf16") == 0
    assert 1.01 ** overflow_length(1.01) == pytest.approx(torch.finfo(torch.float32).max, rel=1e-2)


def test_complex_eigenvalues_fade_as_well():
    def shrinking(tokens):
        return Dense(0.9 * rotation(2.0)(tokens).dense())

    found = diagnose(Constructed(shrinking), "1", vocab=BITS)
    assert found.verdict(2).kind is Kind.PROBED
    assert "along the word lasts 59 tokens in bf16" in found.verdict(2).text


def test_growing_states_are_flagged():
    found = diagnose(Constructed(scalar(-1.01, (-math.inf, math.inf))), "1", vocab=BITS)
    assert found.verdict(2).kind is Kind.NOT_EXCLUDED
    (warning,) = found.warnings()
    assert "modulus 1.01 > 1" in warning
    assert "overflow after about 8,9" in warning


def test_extremes():
    values = torch.tensor([1.0, -0.5, 0.2 + 0.7j, 0.2 - 0.7j, 0.0, 1e-5j]).numpy()
    found = Extremes.of(values.astype(complex), 1e-4)
    assert found.min_real == -0.5
    assert found.max_imag == pytest.approx(0.7)
    assert found.max_modulus == 1.0
    assert found.oscillating_modulus == pytest.approx(math.hypot(0.2, 0.7))
    positive = Extremes.of(values[:1].astype(complex), 1e-4)
    assert positive.oscillating_modulus is None
    assert positive.decay_length("bf16") is None
