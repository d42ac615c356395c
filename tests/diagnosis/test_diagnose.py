"""What is said of every layer there is, of hybrids, and of compiled networks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.compiler import CompiledRNN, compile
from statetrack.diagnosis import Diagnosis, Kind, diagnose
from statetrack.errors import UserError
from statetrack.layers import MIXERS, MixerConfig
from statetrack.models import ModelConfig, SequenceModel
from tests.compiler.languages import LANGUAGES, lively_word
from tests.conftest import Command

LINEAR = [name for name, config in MIXERS.items() if not config.no_switch]
OTHERS = ("attention", "slstm", "full_matrix")  # no linear RNNs, or of any matrices
CLAIM = "cannot recognise (11)*"
NON_NEGATIVE = "its eigenvalues are real and not negative"
FADING = "its eigenvalues are 1 or of modulus below 1, so counting fades (up to ties"

POSITIVE: list[tuple[str, dict[str, Any], str]] = [
    *((name, {}, NON_NEGATIVE) for name in LINEAR),
    ("delta_net", {"beta_stretch": 0.3}, NON_NEGATIVE),
    *(
        (name, {"num_householder": n}, NON_NEGATIVE if n <= 2 else FADING)
        for name in ("delta_product", "gated_delta_product")
        for n in (1, 3, 4)
    ),
]


def other(name: str) -> MixerConfig:
    """One of OTHERS, small."""
    return MIXERS[name](**({"size": 8} if name == "full_matrix" else {}))


def model(*mixers: MixerConfig, layers: int = 2) -> SequenceModel:
    """A small one with large random weights, so that gates and betas reach their ends."""
    torch.manual_seed(0)
    made = SequenceModel(ModelConfig(3, 32, layers, mixers, mlp="swiglu"))
    with torch.no_grad():
        for block in made.blocks:
            for name, parameter in block.named_parameters():
                if "mixer" in name and parameter.dim() == 2:
                    parameter.mul_(4)
    return made


def claims(found: Diagnosis) -> str:
    """What the parametrisation is said to exclude."""
    (text,) = [verdict.text for verdict in found.verdicts() if verdict.kind is Kind.ARCHITECTURAL]
    return text


def test_every_layer_is_of_one_kind() -> None:
    assert {*OTHERS} <= MIXERS.keys() - {*LINEAR}


@pytest.mark.parametrize(
    ("name", "options", "argument"), POSITIVE, ids=lambda x: str(x) if isinstance(x, str) else None
)
def test_linear_ones_in_0_1_cannot_do_parity(
    name: str, options: dict[str, Any], argument: str
) -> None:
    found = diagnose(model(MIXERS[name](**options)), "1", max_tokens=64)
    assert found.architectural.factor == 1
    verdict = found.verdict(2)
    assert verdict.kind is Kind.ARCHITECTURAL
    assert CLAIM in verdict.text
    assert argument in verdict.text
    assert claims(found).startswith(CLAIM)
    for layer in found.layers:  # the argument holds of what was seen
        assert layer.spectrum is not None
        total = layer.spectrum.total
        assert total.max_modulus <= 1 + 1e-9
        if argument is NON_NEGATIVE:
            assert total.min_real >= -1e-9
            assert total.max_imag <= 1e-6
        else:
            assert total.oscillating_modulus is None or total.oscillating_modulus < 0.99


def test_three_factors_in_0_1_do_turn() -> None:
    """So of them "real and not negative" would be wrong."""
    made = model(MIXERS["delta_product"](num_householder=3, num_heads=16))  # heads of size 2
    spectrum = diagnose(made, "1").layers[0].spectrum
    assert spectrum is not None
    assert spectrum.total.min_real < -1e-3 or spectrum.total.max_imag > 1e-3


@pytest.mark.parametrize("name", LINEAR)
def test_linear_ones_in_minus_1_1_are_not_excluded_from_parity(name: str) -> None:
    found = diagnose(model(MIXERS[name](allow_neg_eigval=True)), "1", max_tokens=64)
    assert CLAIM not in claims(found)
    assert found.verdict(2).kind is not Kind.ARCHITECTURAL


@pytest.mark.parametrize("name", ["gated_delta_net", "gated_delta_product"])
def test_a_signed_gate_is_enough(name: str) -> None:
    found = diagnose(model(MIXERS[name](allow_neg_gate=True)), "1")
    assert CLAIM not in claims(found)


@pytest.mark.parametrize("name", OTHERS)
def test_no_claim_of_other_layers(name: str) -> None:
    found = diagnose(model(other(name)), "1")
    assert found.architectural.factor is None
    assert claims(found).startswith("nothing is ruled out")
    if name != "full_matrix":  # nor of these weights
        assert found.probed.factor is None
        assert all(found.verdict(m).kind is Kind.NOT_EXCLUDED for m in range(2, 9))


@pytest.mark.parametrize(("name", "beside"), [*itertools.product(LINEAR, OTHERS)])
def test_no_claim_of_hybrids(name: str, beside: str) -> None:
    linear = MIXERS[name]()
    for pair in ((linear, other(beside)), (other(beside), linear)):
        found = diagnose(model(*pair), "1", max_tokens=32)
        assert found.architectural.factor is None
        assert CLAIM not in claims(found)
        assert found.verdict(2).kind is not Kind.ARCHITECTURAL


# -- compiled networks ----------------------------------------------------------------------------


def test_transitions_are_those_that_the_networks_run() -> None:
    """Multiplied out, with B, they lead from state to state."""
    for name, target in itertools.product(
        ("tomita3", "S3", "dyck1_depth3"), ("householder", "dense")
    ):
        net = compile(LANGUAGES[name], target)
        check_transitions(net)
    check_transitions(compile(LANGUAGES["[ab]*aba[ab]*"], "diagonal"))


def check_transitions(net: CompiledRNN) -> None:
    word, _ = lively_word(net.dfa, 40)
    before = [carry.state for carry in net.begin(1)]
    found = net.transitions(word)
    for t in range(word.shape[1]):
        after = [carry.state for carry in net.run(word[:, : t + 1]).carry]
        for old, new, transition in zip(before, after, found, strict=True):
            moved = transition.dense()[:, t, 0] @ old
            written = new - moved  # what B adds: nothing, or a 1 on one axis
            assert ((written == 0) | (written == 1)).all()
            assert written.sum() <= 1
        before = after


def test_compiled_networks() -> None:
    cyclic = diagnose(compile("Z6"), "1", max_tokens=256)
    assert cyclic.probed.factor == 6
    star_free = diagnose(compile("(ab)*", "diagonal"), "ab")
    assert star_free.verdict(2).kind is Kind.ARCHITECTURAL  # gates of 0 and 1
    made = compile("Z3", "gated_deltaproduct")
    as_model = diagnose(made, "1", tolerance=1e-6, max_tokens=256)
    assert as_model.word == ("1",)
    assert as_model.probed.factor == 3
    spectrum = as_model.layers[0].spectrum
    assert spectrum is not None
    assert {made.vocab[token] for token in spectrum.by_token} == {"0", "1", "2"}
    assert diagnose(compile("(abab)*")).word == ("a", "b")
    with pytest.raises(UserError, match="checkpoint is for runs"):
        diagnose(compile("Z3"), checkpoint=1)


def test_the_command_reads_compiled_folders(command: Command, tmp_path: Path) -> None:
    for target in ("auto", "gated_deltaproduct"):
        folder = tmp_path / target
        command("compile", "Z3", "--out", folder, "--target", target)
        code, out, err = command("diagnose", folder, "--max-length", "40", "--samples", "16")
        assert (code, err) == (0, "")
        assert "at arbitrary length unless m divides 3, with these weights" in " ".join(out.split())
