"""What a diagnosis says and draws, and what the command makes of it."""

from __future__ import annotations

import json
from importlib import import_module as module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from statetrack.compiler import theorems
from statetrack.diagnosis import Diagnosis, Kind, diagnose
from statetrack.diagnosis.horizon import MAX_HORIZON
from statetrack.diagnosis.subject import parse_word
from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig, Diagonal, Transition
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import make_task
from statetrack.training import Run, train
from tests.conftest import Command
from tests.diagnosis.constructed import Constructed, scalar
from tests.training.refusal import Refused
from tests.training.small import small_config

BITS = ("0", "1")
FEW = {"max_length": 64, "samples": 64}


@pytest.fixture(scope="module")
def found(parity: dict[str, Run]) -> dict[str, Diagnosis]:
    """Their diagnoses."""
    return {name: diagnose(run, **FEW) for name, run in parity.items()}


# -- trained models -------------------------------------------------------------------------------


def test_trained_on_parity_without_negative_eigenvalues(found: dict[str, Diagnosis]) -> None:
    positive = found["[0,1]"]
    assert positive.verdict(2).kind is Kind.ARCHITECTURAL
    assert "(11)*" in positive.verdict(2).text
    (layer,) = positive.layers
    assert layer.spectrum is not None
    assert layer.spectrum.total.min_real >= 0
    assert layer.spectrum.total.decay_length("bf16") is None


def test_trained_on_parity_with_negative_eigenvalues(found: dict[str, Diagnosis]) -> None:
    negative = found["[-1,1]"]
    assert negative.verdict(2).kind is Kind.NOT_EXCLUDED
    assert negative.verdict(3).kind is Kind.ARCHITECTURAL  # one symmetric transition
    (layer,) = negative.layers
    assert layer.period is not None
    assert layer.period.factor == 2
    assert layer.spectrum is not None
    assert layer.before is not None
    one = layer.spectrum.by_token[negative.vocab.index("1")]
    assert one.min_real == pytest.approx(-1, abs=1e-4)  # in one head at least a reflection
    assert one.min_real < layer.before.total.min_real
    assert (one.decay_length("fp32") or 0) > 1e6


def test_before_training_is_the_run_s_own_initialisation(
    parity: dict[str, Run], found: dict[str, Diagnosis]
) -> None:
    run = parity["[-1,1]"]
    torch.manual_seed(run.config.training.seed)
    initial = SequenceModel(run.config.model).double()
    before = found["[-1,1]"].layers[0].before
    assert before is not None
    beta = initial.transitions(torch.tensor([[2]]))[0].beta  # type: ignore[union-attr]
    assert before.by_token[2].min_real == pytest.approx(1 - float(beta.max()), abs=1e-5)


def test_an_earlier_checkpoint(parity: dict[str, Run], found: dict[str, Diagnosis]) -> None:
    run = parity["[0,1]"]
    with pytest.raises(UserError, match="no checkpoint of step 7; it has"):
        diagnose(run, checkpoint=7)
    last = run.checkpoint_steps()[-1]
    again = diagnose(run.folder, checkpoint=last, **FEW)
    assert again.to_dict() == found["[0,1]"].to_dict()


# -- words ----------------------------------------------------------------------------------------


def test_words() -> None:
    vocab = ("PAD", "a", "b", "ab", "10", "1", "0")
    assert parse_word("a", vocab, 64) == [1]
    assert parse_word("ab", vocab, 64) == [3]  # a token of its own comes first
    assert parse_word("a b", vocab, 64) == [1, 2]
    for slip in ("ba", "a ba", "11"):  # for the longer tokens are made of such letters
        with pytest.raises(UserError, match=f"unknown token in word '{slip.split()[-1]}'"):
            parse_word(slip, vocab, 64)
    assert parse_word("ba a", ("PAD", "a", "b"), 64) == [2, 1, 1]
    assert parse_word("10 10", vocab, 64) == [4, 4]
    assert parse_word("PAD", vocab, 64) == [0]
    assert parse_word([5, 0], vocab, 64) == [5, 0]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("", "must have 1..8 tokens; got 0"),
        ("  ", "must have 1..8 tokens; got 0"),
        ([], "must have 1..8 tokens; got 0"),
        (5, "a word must be a text or a list of tokens' ids; got int"),
        ("1" * 9, "must have 1..8 tokens; got 9"),
        ("12", "unknown token in word '2'; known: 0, 1"),
        ("1 x", "unknown token in word 'x'; known: 0, 1"),
        ([2], "a token's id must lie in 0..1; got 2"),
        ([-1], "a token's id must lie in 0..1; got -1"),
    ],
)
def test_bad_words(word: Any, says: str) -> None:
    with pytest.raises(UserError) as error:
        diagnose(Constructed(scalar(0.5)), word, vocab=BITS, max_tokens=64)
    assert says in str(error.value)


def test_what_cannot_be_diagnosed() -> None:
    with pytest.raises(UserError, match=r"a module with transitions\(tokens\); got a Linear"):
        diagnose(torch.nn.Linear(1, 1))
    with pytest.raises(UserError, match=r"Constructed has no config.vocab_size: give the vocab"):
        diagnose(Constructed(scalar(0.5)))
    with pytest.raises(UserError, match="checkpoint is for runs"):
        diagnose(Constructed(scalar(0.5)), "1", vocab=BITS, checkpoint=3)
    for options in ({"tolerance": 0.0}, {"tolerance": float("nan")}, {"max_tokens": 2}):
        with pytest.raises(UserError, match=r"tolerance|max_tokens"):
            diagnose(Constructed(scalar(0.5)), "1", vocab=BITS, **options)  # type: ignore[arg-type]


def test_a_model_s_word_is_of_ids() -> None:
    config = ModelConfig(vocab_size=12, hidden_size=8, mixer=DeltaNetConfig(num_heads=2))
    assert diagnose(SequenceModel(config), "11 0").word == ("11", "0")


def test_large_models_are_probed_at_fewer_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def watched(tokens: Tensor) -> Transition | None:
        read.append(tokens.numel())
        return scalar(-1.0)(tokens)

    monkeypatch.setattr(module("statetrack.diagnosis.diagnose"), "MAX_EIGENVALUES", 200)
    found = diagnose(Constructed(watched), "1", vocab=BITS)
    assert max(read) <= 200
    assert found.verdict(2).kind is Kind.NOT_EXCLUDED
    with pytest.raises(UserError, match=r"only 200 tokens fit .* a word of 26 takes 208"):
        diagnose(Constructed(watched), "1" * 26, vocab=BITS)


# -- the report -----------------------------------------------------------------------------------


def test_text_and_values() -> None:
    found = diagnose(Constructed(scalar(0.5, (0.0, 1.0)), scalar(-0.98)), "1", vocab=BITS)
    text = str(found)
    assert "non-negative" in text
    assert "309 / 823" in text
    for sentence in found.sentences():
        assert " ".join(sentence.split()[:6]) in text
    kinds = [verdict.kind for verdict in found.verdicts()]
    assert kinds == [Kind.ARCHITECTURAL, Kind.PROBED, Kind.NOT_EXCLUDED]
    assert "unless m divides 2" in found.verdicts()[0].text
    assert "cannot recognise (11)*, nor (1^m)* for any m >= 2" in found.verdicts()[1].text
    assert "Every modulus from 2 to 12 is ruled out." in text
    assert not any(" can " in verdict.text for verdict in found.verdicts())
    assert "what is not ruled out need not be possible" not in text
    assert "what is not ruled out need not be possible" in found.text(verbose=True)


def test_values_are_plain() -> None:
    found = diagnose(theorems.theorem6(5))
    result = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [layer["period"]["factor"] for layer in result["layers"]] == [2, 5]
    assert result["probed"]["factor"] == 10
    assert [row["m"] for row in result["languages"] if row["kind"] == "not excluded"] == [2, 5, 10]
    after = result["layers"][1]["after"]
    assert after["min_real"] == pytest.approx(-1)
    assert set(after["by_token"]) == set("01234")
    assert len(after["by_head"]) == after["heads"] == 1
    assert after["decay_length"] == {"bf16": None, "fp32": None}  # no end
    assert result["layers"][1]["before"] is None


def test_by_token_and_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heads, each of which turns on a token of its own."""

    def heads(tokens: Tensor) -> Transition:
        flips = torch.stack([tokens == 0, tokens == 1], -1)  # [B, T, heads]
        values = torch.stack([torch.where(flips, -0.5, 0.25), torch.ones(flips.shape)], -1)
        return Diagonal(values.double(), (-1.0, 1.0))

    def joint() -> dict[str, Any]:
        found = diagnose(Constructed(heads), "1", vocab=BITS).to_dict()
        text = json.dumps(found["layers"][0]["after"]["by_token_and_head"], allow_nan=False)
        return json.loads(text)

    assert joint() == {
        "tokens": ["0", "1"],
        "min_real": [[-0.5, 0.25], [0.25, -0.5]],
        "max_imag": [[0.0, 0.0], [0.0, 0.0]],
        "max_modulus": [[1.0, 1.0], [1.0, 1.0]],
        "oscillating_modulus": [[0.5, None], [None, 0.5]],
    }
    monkeypatch.setattr(module("statetrack.diagnosis.spectrum"), "MAX_PAIRS", 3)
    assert joint()["left_out"].startswith("2 tokens and 2 heads make 4 pairs; at most")


def test_layers_that_are_no_linear_rnns_have_a_row() -> None:
    found = diagnose(Constructed(lambda tokens: None, scalar(-1.0)), "1", vocab=BITS)
    _, columns, rows = found.table()
    assert [len(row) for row in rows] == [len(columns)] * 2
    assert "no linear RNN" in rows[0]
    assert found.to_dict()["layers"][0]["after"] is None
    assert "Nothing is ruled out, whatever the weights: layer 0 is no linear RNN." in str(found)


# -- the figure -----------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    save = Figure.savefig

    def watched(self: Figure, *args: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", watched)
    return figures


def test_figure(found: dict[str, Diagnosis], drawn: list[Figure], tmp_path: Path) -> None:
    negative = found["[-1,1]"]
    negative.plot(tmp_path / "disk.png")
    assert (tmp_path / "disk.png").read_bytes().startswith(b"\x89PNG")
    disk, lanes, kept = drawn[0].axes
    assert kept.get_legend_handles_labels()[1][:2] == ["layer 0, head 0", "layer 0, head 1"]
    before, after = (np.asarray(c.get_offsets()) for c in disk.collections)
    spectra = (negative.layers[0].before, negative.layers[0].spectrum)
    for points, spectrum in zip((before, after), spectra, strict=True):
        assert spectrum is not None
        assert points[:, 0].min() == pytest.approx(spectrum.total.min_real, abs=0.006)
    assert [text.get_text() for text in lanes.get_yticklabels()] == ["0", "1"]
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert labels == ["after training", "before"]


def test_figure_of_many_layers_and_tokens(drawn: list[Figure], tmp_path: Path) -> None:
    rules = [scalar(0.5), lambda tokens: None, *[scalar(1.5)] * 3]
    found = diagnose(Constructed(*rules), "7", vocab=[str(i) for i in range(20)])
    found.plot(tmp_path / "disk.svg")
    assert b"<svg" in (tmp_path / "disk.svg").read_bytes()
    assert drawn[0].axes[0].get_xlim()[1] > 1.5
    lanes = drawn[0].axes[4 + 0]  # disks of the first four layers, then their lanes
    assert [text.get_text() for text in lanes.get_yticklabels()][-1] == "13 others"
    assert drawn[0].legends == []  # nothing is known of before
    with pytest.raises(UserError, match="ending of a figure"):
        found.plot(tmp_path / "disk.jpg")


# -- the command ----------------------------------------------------------------------------------


def test_command(
    command: Command, parity: dict[str, Run], found: dict[str, Diagnosis], tmp_path: Path
) -> None:
    few = ["--max-length", "64", "--samples", "64"]
    figure, file = tmp_path / "disk.png", tmp_path / "found.json"
    run = parity["[0,1]"].folder
    code, out, err = command("diagnose", run, "--figure", figure, "--json", file, *few)
    assert (code, err) == (0, "")
    assert out.startswith(
        "DeltaNet [0,1] on parity\nThis model has not learned parity: accuracy is below 0.99"
    )
    assert out.endswith(
        "Remedy: Train with --allow-neg-eigval, for more steps, or on longer sequences.\n"
    )
    assert (
        "It cannot recognise (11)*, nor (1^m)* for any m >= 2, at arbitrary length, whatever" in out
    )
    assert figure.is_file()
    expected = {"run": str(run), **found["[0,1]"].to_dict()}
    assert json.loads(file.read_text()) == json.loads(json.dumps(expected))


def test_command_tells_a_program(command: Command, run_folder: Path) -> None:
    code, out, err = command("diagnose", run_folder, "--word", "0 1", "--checkpoint", "2",
                             "--tolerance", "1e-3", "--max-length", "0", "--json", "-")  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert (result["word"], result["tolerance"]) == (["0", "1"], 1e-3)
    assert "It cannot recognise" in err
    assert result["languages"][0]["language"] == "((01)^2)*"


def test_every_task_can_be_diagnosed(tmp_path: Path) -> None:
    """Padding inside, long vocabularies, lengths of their own."""
    for name, word in (("modular_arithmetic", "1 +"), ("S3", "1"), ("regex:(ab)*", "ab")):
        config = small_config(name, "delta_net,mamba", min_length=5, max_length=9)
        run = train(config, tmp_path / name.replace("*", ""))
        found = diagnose(run, word, **FEW)
        assert found.verdict(2).kind is Kind.ARCHITECTURAL
        spectrum = found.layers[0].spectrum
        assert spectrum is not None
        assert make_task(name).pad not in spectrum.by_token


def test_what_was_not_trained_has_no_before(command: Command, tmp_path: Path) -> None:
    flags = ["--out", tmp_path / "net", "--target", "gated_deltaproduct"]
    assert command("compile", "a*b*", *flags).code == 0
    found = diagnose(tmp_path / "net", max_length=0)
    assert found.horizon.prediction is not None
    assert found.horizon.prediction.horizon == MAX_HORIZON
    assert all(layer.spectrum is not None and layer.before is None for layer in found.layers)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nowhere"], ["nowhere is not a run folder: it has no config.json"]),
        (["run", "--word", ""], ["the word must have 1..512 tokens; got 0"]),
        (["run", "--word", "x"], ["unknown token in word 'x'; known: 0, 1, PAD"]),
        (["run", "--word", "1x"], ["unknown token in word '1x'"]),
        (["run", "--checkpoint", "3"], ["no checkpoint of step 3; it has [2, 4]"]),
        (["run", "--tolerance", "0"], ["tolerance must lie in"]),
        (["run", "--figure", "x.jpg"], ["ending of a figure", ".png, .svg, .pdf"]),
        (["run", "--figure", "no/x.png"], ["no/x.png", "a file in a writable folder"]),
        (["run", "--json", "no/x.json"], ["cannot write JSON"]),
    ],
)
def test_careless_users(
    args: list[str], says: list[str], refused: Refused, run_folder: Path
) -> None:
    refused("diagnose", *args, says=says)
