"""The audit of transitions: what counts as which kind, and how long a sign survives."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from statetrack import DeltaNetConfig, GatedDeltaProductConfig, ModelConfig
from statetrack.layers import Dense, Diagonal, HouseholderProduct, Transition
from statetrack.lm.audit import Audit, Classified, LayerAudit, audit, classify, survival_lengths
from statetrack.lm.audit_report import audit_document
from statetrack.lm.evaluation_data import EvaluationData
from statetrack.lm.transition_kinds import KINDS
from tests.conftest import Command
from tests.lm.common import causal_model
from tests.lm.evaluation import VOCAB, checkpoint, data_folder, hf_model, language

ALL = (-math.inf, math.inf)


def kinds(transition: Transition) -> list[str]:
    return [KINDS[i] for i in classify(transition).kind.flatten().tolist()]


def householder(keys: Tensor, beta: Tensor) -> HouseholderProduct:
    """keys [T, factors, K] and beta [T, factors] of one head."""
    return HouseholderProduct(None, keys[None, :, None], beta[None, :, None], ALL)


def test_kinds_of_diagonal_entries() -> None:
    values = torch.tensor([-0.5, -0.05, 0.5, 0.95])
    assert kinds(Diagonal(values[None, None, None], ALL)) == ["reflect", "forget", "forget", "keep"]


def test_kinds_of_householder_products() -> None:
    keys = torch.eye(2)[[0, 0, 0]][:, None]
    assert kinds(householder(keys, torch.tensor([[2.0], [0.05], [0.5]]))) == [
        "reflect", "keep", "forget",
    ]  # fmt: skip
    half = 0.5**0.5
    quarter_turn = householder(torch.tensor([[[1.0, 0.0], [half, half]]]), torch.full((1, 2), 2.0))
    assert kinds(quarter_turn) == ["rotate"]
    modulus = classify(householder(keys[:1], torch.tensor([[1.5]]))).modulus
    assert modulus.item() == pytest.approx(-0.5)  # not the eigenvalues that are 1


def test_kinds_of_dense_matrices() -> None:
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    both = torch.block_diag(turn, torch.tensor([[-1.0]]))
    for matrix, kind in ((turn, "rotate"), (both, "reflect"), (torch.eye(2), "keep")):
        assert kinds(Dense(matrix[None, None, None])) == [kind]


def test_survival_of_diagonal_entries() -> None:
    """0.5^9 = 2^-9 is still resolved in bf16, and so is 0.5^24 = 2^-24 in fp32."""
    values = torch.tensor([0.5, -0.5, 1.0, 0.0]).expand(1, 100, 1, 4)
    found = survival_lengths(Diagonal(values, ALL), [0, 7])
    for name, tokens in (("bf16", 9), ("fp32", 24)):
        assert found[name].shape == (1, 4, 2)
        expected = torch.tensor([tokens, tokens, math.inf, 0.0])
        assert torch.equal(found[name][0], expected[:, None].expand(4, 2))


def test_survival_along_keys() -> None:
    """Reading a key again shrinks what was written under it; other keys do not touch it."""
    length = 100
    same = torch.eye(2)[torch.zeros(length).long()][:, None]
    turns = torch.eye(2)[torch.arange(length) % 2][:, None]
    beta = torch.full((length, 1), 1.5)
    for keys, factor in ((same, 1), (turns, 2)):
        found = survival_lengths(householder(keys, beta), [0, 10])
        # the last of the tokens between two reads of the key still counts
        assert found["bf16"].flatten().tolist() == [9 * factor + factor - 1] * 2
    first = torch.zeros(length, 1)
    assert survival_lengths(householder(same, first), [3])["fp32"].item() == math.inf


def test_survival_is_followed_for_half_a_sequence() -> None:
    decay = 2.0**-0.25  # 36 tokens to 2^-9, 96 to 2^-24
    found = survival_lengths(Diagonal(torch.full((1, 100, 1, 1), decay), ALL), [0, 30])
    assert found["fp32"].flatten().tolist() == [math.inf, math.inf]  # 96 is more than 50
    assert all(36 <= n <= 37 for n in found["bf16"].flatten().tolist())  # up to rounding


def test_tally() -> None:
    layer = LayerAudit(3, "name", 64)
    kind = torch.tensor([[[0, 2], [3, 3]], [[0, 0], [3, 2]]])  # [T, heads, parts]
    modulus = torch.tensor([[[-1.0, 0.96], [0.2, 0.2]], [[-0.5, -0.5], [0.2, 1.0]]])
    lengths = {"bf16": torch.tensor([[[5.0, 6.0, 7.0]], [[20.0, math.inf, math.inf]]])}
    lengths["fp32"] = lengths["bf16"]
    for _ in range(2):
        layer.add(Classified(kind, modulus), lengths)
    assert layer.shares().tolist() == [[0.75, 0.0], [0.0, 0.0], [0.25, 0.25], [0.0, 0.75]]
    assert layer.total() == {"reflect": 0.375, "rotate": 0.0, "keep": 0.25, "forget": 0.375}
    assert layer.modulus(0.5) == pytest.approx(0.5, abs=0.01)
    assert layer.modulus(0.1) == pytest.approx(0.2, abs=0.01)
    assert layer.survives("bf16", 0) == 6
    assert layer.survives("bf16", 1) is None  # 32 or more
    assert layer.survives("bf16") == 7
    assert json.dumps(layer.to_dict())


def random_data(length: int = 400) -> EvaluationData:
    tokens = np.random.default_rng(0).integers(1, 20, length)
    return EvaluationData("text", length, lambda a, b: tokens[a:b], "")


@pytest.fixture(scope="module")
def found() -> Audit:
    mixer = GatedDeltaProductConfig(allow_neg_eigval=True, num_heads=2)
    config = ModelConfig(vocab_size=VOCAB, hidden_size=16, mixer=mixer)
    return audit(language(causal_model(config)), random_data(), tokens=200, length=64)


def test_shares_are_those_of_the_transitions(found: Audit) -> None:
    """By head, from the matrices themselves."""
    mixer = GatedDeltaProductConfig(allow_neg_eigval=True, num_heads=2)
    model = causal_model(ModelConfig(vocab_size=VOCAB, hidden_size=16, mixer=mixer))
    sequences = [torch.from_numpy(random_data().read(i, i + 64))[None] for i in (0, 64, 128)]
    assert (found.tokens, len(found.layers)) == (192, 2)
    per_layer = zip(*(model.sequence_model.transitions(s) for s in sequences), strict=True)
    for layer, transitions in zip(found.layers, per_layer, strict=True):
        values = torch.cat([torch.linalg.eigvals(t.dense()) for t in transitions if t], 1)[0]
        is_real = values.imag.abs() <= 0.01
        reflects = (is_real & (values.real < -0.1)).any(-1)
        rotates = ~is_real.all(-1) & ~reflects
        assert layer.shares()[0].tolist() == pytest.approx(reflects.double().mean(0).tolist())
        assert layer.shares()[1].tolist() == pytest.approx(rotates.double().mean(0).tolist())
        assert 0 < layer.total()["reflect"] < 1
        assert 0 < layer.total()["rotate"] < 1
        assert layer.shares().sum(0).tolist() == pytest.approx([1.0, 1.0])


def test_tokens_that_reflect_most() -> None:
    """A layer that reflects at one token only, by its beta."""
    config = ModelConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_layers=1,
        mixer=DeltaNetConfig(allow_neg_eigval=True, conv_size=0),
        norm="none",
    )
    model = causal_model(config)
    tokens = np.tile([5, 6, 7], 40)
    with torch.no_grad():
        model.sequence_model.embedding.weight[5:8] = torch.eye(16)[:3]
        beta = model.sequence_model.blocks[0].mixer.beta.proj.weight
        beta.zero_()
        beta[:, 0], beta[:, 1], beta[:, 2] = -5, 5, -5  # beta is near 2 at token 6, else near 0
    data = EvaluationData("text", len(tokens), lambda a, b: tokens[a:b], "")
    made = language(model)
    found = audit(made, data, tokens=120, length=60)
    assert made.tokenizer is not None
    assert found.total()["reflect"] == pytest.approx(1 / 3)
    assert found.total()["keep"] == pytest.approx(2 / 3)
    assert [tuple(t) for t in found.reflecting] == [(made.tokenizer.decode([6]), 40, 1.0)]


def test_the_document(found: Audit) -> None:
    document = audit_document([found], "made so")
    names = [table.name for table in document.tables]
    assert names == ["layers-text", "heads-text", "tokens-text"]
    layers, heads, tokens = document.tables
    shares = [float(c) for c in layers.rows[0][3:7] if isinstance(c, float)]
    assert sum(shares) == pytest.approx(1.0)
    assert len(heads.rows) == 4
    assert heads.rows[1][2] == pytest.approx(found.layers[0].shares()[0][1])
    assert 0 < len(tokens.rows) <= 15
    kinds_figure, moduli = document.figures
    assert {panel.title for panel in kinds_figure.panels} <= set(KINDS)
    heat = kinds_figure.panels[0].heat
    assert heat is not None
    assert np.allclose(np.array(heat.values, float), [a.shares()[0] for a in found.layers])
    assert sum(moduli.series[0].y) == pytest.approx(1.0)
    assert "reflect" in document.summary[0]
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_many_channels_are_shown_in_sorted_groups() -> None:
    model = hf_model("mamba")  # with 64 channels
    found = audit(language(model), random_data(), tokens=64, length=32)
    layer = found.layers[0]
    wide = LayerAudit(0, "wide", 32)
    wide.kinds = np.tile(layer.kinds, 2)
    wide.moduli, wide.survival = layer.moduli, layer.survival
    many = Audit("model", "text", 64, 32, (wide,), ())
    figure = audit_document([many], "").figures[0]
    keep = next(panel for panel in figure.panels if panel.title == "keep").heat
    assert keep is not None
    values = np.array(keep.values[0], float)
    assert values.shape == (64,)
    assert (np.diff(values) <= 0).all()
    assert values.mean() == pytest.approx(wide.shares()[2].mean())


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mamba", "qwen3_next"])
def test_the_command(name: str, command: Command, tmp_path: Path) -> None:
    folder, data = checkpoint(hf_model(name), tmp_path / name), data_folder(tmp_path / "code")
    out, result = tmp_path / "out", tmp_path / "result.json"
    found = command(
        "lm", "audit", folder, "--data", data, "--tokens", "128", "--length", "64",
        "--out", out, "--json", result,
    )  # fmt: skip
    assert found.code == 0, found.err
    (row,) = json.loads(result.read_text())["results"]
    assert row["tokens"] == 128
    assert row["reflect"] == 0.0  # [0, 1] is all that it has
    assert [layer["layer"] for layer in row["layers"]] == ([0, 1] if name == "mamba" else [0])
    assert "None reflects." in found.out
    assert {"index.html", "kinds-code.png", "moduli-code.svg", "layers-code.csv"} <= {
        file.name for file in out.iterdir()
    }


def test_refusals(command: Command, tmp_path: Path) -> None:
    data = data_folder(tmp_path / "code")
    gpt2 = checkpoint(hf_model("gpt2"), tmp_path / "gpt2")
    mamba = checkpoint(hf_model("mamba"), tmp_path / "mamba")

    def refused(*args: object) -> str:
        found = command("lm", "audit", *map(str, args))
        assert found.code == 2, found.out
        return found.err

    few = ("--tokens", "64", "--length", "32")
    assert "GPT2LMHeadModel has no linear recurrent layers" in refused(gpt2, "--data", data, *few)
    assert "--data is missing" in refused(mamba)
    file = data / "data.json"
    assert "is not a folder" in refused(mamba, "--data", data, "--out", file)
    assert "is not empty" in refused(mamba, "--data", data, "--out", mamba)
    assert "CHECKPOINT is missing" in refused("--data", data)
    assert "a sequence needs 100,000" in refused(
        mamba, "--data", data, "--tokens", "100000", "--length", "100000"
    )
    assert "at least 16" in refused(mamba, "--data", data, "--length", "4")
    assert "at least 32" in refused(mamba, "--data", data, "--tokens", "8", "--length", "32")
