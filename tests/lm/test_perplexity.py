"""Perplexity against position: in segments as in one pass, and as it is defined."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from benchmarks import lm_memory
from statetrack.errors import UserError
from statetrack.layers import MIXERS, AttentionConfig, DeltaNetConfig, MambaConfig, MixerConfig
from statetrack.layers.base import VARIANT_SIZE
from statetrack.lm import StateTrackConfig, StateTrackForCausalLM, perplexity
from statetrack.lm.data.tokenizer import settings_json, train_tokenizer
from statetrack.lm.evaluation_data import EvaluationData, distinct_names, open_data
from statetrack.lm.load import LanguageModel
from statetrack.lm.perplexity import (
    SEGMENT,
    Moments,
    PerplexityCurve,
    Reader,
    make_reader,
    measure_perplexity,
    token_losses,
)
from statetrack.lm.perplexity_report import figure_positions, perplexity_document, table_positions
from statetrack.models import ModelConfig, SequenceModel
from statetrack.models.convert import convert
from statetrack.report.document import Document
from statetrack.report.render import check_report_folder, write_document
from statetrack.report.spread import Spread
from tests.conftest import Command
from tests.lm.common import causal_model
from tests.lm.evaluation import (
    TEXTS,
    VOCAB,
    checkpoint,
    data_folder,
    hf_model,
    language,
    tokenizer,
)

VARIANTS = [(c,) for mixer in MIXERS.values() for c in mixer.variants()]
HYBRID = (DeltaNetConfig(num_heads=3), AttentionConfig(num_heads=3), MambaConfig())


def tokens_of(length: int) -> Tensor:
    return torch.randint(1, VOCAB, (length,), generator=torch.Generator().manual_seed(length))


def ours(mixers: tuple[MixerConfig, ...], size: int = VARIANT_SIZE) -> StateTrackForCausalLM:
    config = ModelConfig(
        vocab_size=VOCAB, hidden_size=size, num_layers=2 * len(mixers), mixer=mixers
    )
    return causal_model(config)


def one_pass(model: Any, tokens: Tensor) -> np.ndarray:
    """The definition: -log softmax of the next token, for all tokens at once."""
    with torch.no_grad():
        logits = model(tokens[None, :-1], use_cache=False).logits[0].double()
    return -logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("mixers", [*VARIANTS, HYBRID], ids=str)
def test_segments_give_the_losses_of_one_pass(mixers: tuple[MixerConfig, ...]) -> None:
    model, tokens = ours(mixers).double(), tokens_of(40)
    reader = make_reader(language(model))
    losses = token_losses(reader._replace(segment=7), tokens)
    np.testing.assert_allclose(losses, one_pass(model, tokens), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "how", "tolerance"),
    [
        ("gpt2", "cache", 1e-9),
        ("llama", "cache", 1e-9),
        ("mamba", "converted", 2e-6),  # transformers' norms and logits are in float32
        ("mamba2", "converted", 2e-6),
        ("olmo_hybrid", "converted", 2e-6),
        ("qwen3_5", "converted", 2e-6),
    ],
)
def test_segments_give_the_losses_of_one_pass_of_transformers(
    name: str, how: str, tolerance: float
) -> None:
    model, tokens = hf_model(name).double(), tokens_of(40)
    reader = make_reader(language(model))
    assert how in reader.how
    losses = token_losses(reader._replace(segment=7), tokens)
    np.testing.assert_allclose(losses, one_pass(model, tokens), rtol=tolerance)


def test_experts_are_converted() -> None:
    model, tokens = hf_model("qwen3_next"), tokens_of(40)  # its experts have no float64
    reader = make_reader(language(model))
    assert "converted" in reader.how
    losses = token_losses(reader._replace(segment=7), tokens)
    np.testing.assert_allclose(losses, one_pass(model, tokens), rtol=1e-4)


def test_a_conversion_with_other_logits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(*args: Any, **options: Any) -> SequenceModel:
        model = convert(*args, **options)
        model.norm.weight.data = 1.1 * model.norm.weight
        return model

    monkeypatch.setattr(perplexity, "convert", changed)
    reader = make_reader(language(hf_model("mamba2")))
    assert (reader.how, reader.segment) == ("in segments, with its cache", SEGMENT)


def test_a_cache_that_does_not_carry_over_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hf_model("gpt2")
    forward = model.forward

    def forgetful(tokens: Tensor, past_key_values: Any = None, use_cache: bool = False) -> Any:
        return forward(tokens, use_cache=use_cache)

    monkeypatch.setattr(model, "forward", forgetful)
    assert make_reader(language(model)).segment is None


def test_a_model_without_a_cache_is_read_in_one_pass() -> None:
    model, tokens = hf_model("gpt1"), tokens_of(40)
    reader = make_reader(language(model))
    assert reader.segment is None
    assert "one pass" in reader.how
    np.testing.assert_allclose(token_losses(reader, tokens), one_pass(model, tokens), rtol=1e-5)


def test_no_more_than_one_segment_has_logits() -> None:
    sizes = []

    def read(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        sizes.append((tokens.shape[1], state))
        return torch.zeros(1, tokens.shape[1], 4), len(sizes)

    losses = token_losses(Reader(read, SEGMENT, ""), torch.zeros(2 * SEGMENT + 4).long())
    assert sizes == [(SEGMENT, None), (SEGMENT, 1), (3, 2)]
    np.testing.assert_allclose(losses, np.log(4), rtol=1e-6)


def test_the_curve_is_as_defined() -> None:
    model = ours((DeltaNetConfig(),), 16)
    tokens, length = tokens_of(200).numpy(), 60
    data = EvaluationData("text", len(tokens), lambda a, b: tokens[a:b], "")
    said: list[str] = []
    curve = measure_perplexity(language(model), data, max_length=length, on_progress=said.append)
    assert curve.chunks == len(said) == 3
    chunks = [torch.from_numpy(tokens[i * length : (i + 1) * length + 1]) for i in range(3)]
    losses = np.stack([one_pass(model, chunk) for chunk in chunks])
    running = losses.cumsum(1) / np.arange(1, length + 1)
    np.testing.assert_allclose(curve.running.mean, running.mean(0), rtol=1e-5)
    assert curve.at(length) == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    np.testing.assert_allclose(curve.totals, losses.mean(1), rtol=1e-5)
    assert curve.edges[-3:] == (30, 42, 60)
    for i in (0, 5, len(curve.edges) - 2):
        low, high = curve.edges[i : i + 2]
        assert curve.windows.mean[i] == pytest.approx(losses[:, low:high].mean(), rel=1e-5)
    found = curve.to_dict([1, length])["running_perplexity"]
    expected = Spread(tuple(losses.mean(1))).interval
    assert expected is not None
    assert np.log([found["low"][1], found["high"][1]]) == pytest.approx(expected, rel=1e-5)
    assert measure_perplexity(language(model), data, max_length=length, chunks=1).chunks == 1


def test_moments() -> None:
    values = np.random.default_rng(0).normal(5, 2, (7, 3))
    moments = Moments()
    assert moments.interval is None
    for row in values:
        moments.add(row)
    np.testing.assert_allclose(moments.mean, values.mean(0))
    assert moments.interval is not None
    low, high = moments.interval
    for i in range(3):
        assert (low[i], high[i]) == pytest.approx(Spread(tuple(values[:, i])).interval)


@pytest.fixture(scope="module")
def languages() -> list[LanguageModel]:
    narrow = ours((DeltaNetConfig(num_heads=2),), 16)
    wide = ours((DeltaNetConfig(num_heads=2, allow_neg_eigval=True),), 16)
    return [language(narrow, "narrow"), language(wide, "wide", 8)]


def test_the_document(languages: list[LanguageModel], tmp_path: Path) -> None:
    opened = [open_data(data_folder(tmp_path / n), languages[0], 0) for n in ("code", "maths")]
    curves = [measure_perplexity(m, d, max_length=64) for m in languages for d in opened]
    document = perplexity_document(curves, "made so")
    running, windows, compared = document.tables
    assert [row[:2] for row in running.rows] == [
        ["code", "narrow"], ["code", "wide"], ["maths", "narrow"], ["maths", "wide"],
    ]  # fmt: skip
    assert list(running.columns[5:-1]) == ["8", "16", "32", "64"]
    assert running.rows[1][8] == curves[2].at(64)
    assert windows.rows[0][8] == pytest.approx(np.exp(curves[0].windows.mean[-1]))
    assert len(compared.rows) == 2  # wide beside narrow on both
    ratio = curves[2].at(64) / curves[0].at(64)
    assert float(str(compared.rows[0][3])) == pytest.approx(ratio, abs=1e-4)
    ends = Spread(tuple(np.subtract(curves[2].totals, curves[0].totals))).interval
    assert ends is not None
    low, high = np.exp(ends)
    numbers = f"(ratio {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f})"
    claimed = "wide predicts better than narrow at 64 tokens on code"
    if low <= 1 <= high:
        claimed = "No difference is claimed at 64 tokens on code between wide and narrow"
    assert document.summary[0] == f"{claimed} {numbers}."
    assert document.summary[3].startswith("Running perplexity at 64 tokens on code: narrow ")
    for figure in document.figures:
        assert [panel.title for panel in figure.panels] == ["code", "maths"]
        assert [text for _, text in figure.panels[0].marks] == ["trained at 16", "trained at 8"]
        assert [line.label for line in figure.panels[0].series] == ["narrow", "wide"]


@pytest.mark.parametrize(
    ("shift", "rise", "claim"),
    [
        (0.0, 0.0, "No difference is claimed at 64 tokens on text between b and a (ratio 1.0"),
        (0.4, 1.0, "b predicts worse than a at 64 tokens on text (ratio 1.4"),
    ],
)
def test_a_difference_is_claimed_only_if_its_interval_excludes_1(
    shift: float, rise: float, claim: str
) -> None:
    """And so is a rise past the training length of 16."""
    rng = np.random.default_rng(1)
    curves = []
    for name, more in (("a", 0.0), ("b", shift)):
        losses = 4 + more + 0.05 * rng.normal(size=(6, 64))
        losses[:, 16:] += rise
        running, windows = Moments(), Moments()
        edges = (0, 8, 16, 32, 64)
        for row in losses:
            running.add(row.cumsum() / np.arange(1, 65))
            windows.add(np.array([row[a:b].mean() for a, b in pairwise(edges)]))
        totals = tuple(losses.mean(1))
        curves.append(
            PerplexityCurve(
                name, name, "text", "same", 16, None, "so", running, windows, edges, totals, None, 1
            )
        )
    summary = perplexity_document(curves, "").summary
    assert summary[0].startswith(claim)
    risen = "it rises" if rise else "no rise is claimed|it does not rise"
    beyond = rf"Perplexity of a on text past its training length of 16 tokens: ({risen}) \("
    assert re.match(beyond, summary[1])
    single = perplexity_document([replace(c, totals=c.totals[:1]) for c in curves], "").summary[0]
    assert "a single chunk gives no interval" in single


def test_tokenizers_are_compared_by_bits_per_byte(
    languages: list[LanguageModel], tmp_path: Path
) -> None:
    file = tmp_path / "prose.txt"
    file.write_text("naïve sums ☃ of all bits are even 🙂 or odd\n" * 30)
    other = train_tokenizer([file.read_text()], 290).tokenizer
    words = PreTrainedTokenizerFast(tokenizer_object=other, name_or_path="other")
    models = [languages[0], languages[1]._replace(tokenizer=words)]
    curves = [
        measure_perplexity(m, open_data(file, m, 65), max_length=32, chunks=2) for m in models
    ]
    document = perplexity_document(curves, "")
    for curve, model in zip(curves, models, strict=True):
        assert model.tokenizer is not None
        ids = model.tokenizer(file.read_text()).input_ids[1:65]  # the first is not predicted
        size = len(model.tokenizer.decode(ids).encode())
        expected = np.mean(curve.totals) * 64 / np.log(2) / size
        assert curve.bits_per_byte == pytest.approx(expected, rel=0.05)  # it may end in a character
    assert document.summary[0].startswith(
        "wide and narrow have different tokenizers: perplexities per token cannot be compared. "
        f"Bits per byte at 32 tokens on prose: narrow {curves[0].bits_per_byte:.3f}; wide "
    )
    assert [table.name for table in document.tables] == ["running", "windows"]
    assert document.tables[0].columns[-1] == "bits per byte"


def test_seeds_of_a_model_share_a_line(languages: list[LanguageModel], tmp_path: Path) -> None:
    data = open_data(data_folder(tmp_path / "code"), languages[0], 0)
    made = [ours((DeltaNetConfig(num_heads=2),), 16) for _ in range(4)]
    for seed, model in enumerate(made):
        with torch.no_grad():
            noise = torch.Generator().manual_seed(seed)
            weight = model.sequence_model.head.weight
            weight += 0.1 * torch.randn(weight.shape, generator=noise)
    curves = [
        measure_perplexity(language(model, f"run {i}"), data, max_length=64, name="ab"[i // 2])
        for i, model in enumerate(made)
    ]
    document = perplexity_document(curves, "")
    ends = np.array([curve.running.mean[-1] for curve in curves])
    rows = document.tables[0].rows
    assert [row[1:4] for row in rows] == [["a", 16, 2], ["b", 16, 2]]
    assert rows[0][-2] == pytest.approx(np.exp(ends[:2].mean()))
    interval = Spread(tuple(ends[:2])).interval
    assert interval is not None
    assert rows[0][-1] == " to ".join(f"{np.exp(end):.3f}" for end in interval)
    (compared,) = document.tables[2].rows
    assert compared[1:3] == ["b", "a"]
    assert float(str(compared[3])) == pytest.approx(np.exp(ends[2:].mean() - ends[:2].mean()), 1e-4)
    assert compared[5] == "2 seeds"
    lines = document.figures[0].panels[0].series
    assert [line.label for line in lines] == ["a", "run 0", "run 1", "b", "run 2", "run 3"]
    assert [line.faint for line in lines] == [False, True, True] * 2


def test_names_tell_paths_apart() -> None:
    paths = ["runs/a/wide", "runs/b/wide", "code.txt", "runs/c/model"]
    assert distinct_names([Path(p) for p in paths]) == ["a/wide", "b/wide", "code.txt", "c"]
    with pytest.raises(UserError, match="runs/c is given twice"):
        distinct_names([Path("code.txt"), Path("runs/c"), Path("runs/c/model")])


def test_positions() -> None:
    points = figure_positions(16384)
    assert (points[0], points[-1]) == (64, 16384)
    assert points == sorted(set(points))
    assert figure_positions(3) == [1, 2, 3]


def test_positions_of_the_table_without_a_training_length(
    languages: list[LanguageModel], tmp_path: Path
) -> None:
    opened = open_data(data_folder(tmp_path / "code"), languages[0], 0)
    curve = measure_perplexity(languages[0]._replace(training_length=None), opened, max_length=64)
    assert table_positions([curve]) == [8, 16, 32, 64]


def test_perplexity_depends_on_what_was_read_before(languages: list[LanguageModel]) -> None:
    """A state that is dropped between segments is noticed."""
    reader, tokens = make_reader(languages[1])._replace(segment=7), tokens_of(40)
    forgetful = reader._replace(read=lambda x, _: reader.read(x, None))
    kept, dropped = token_losses(reader, tokens), token_losses(forgetful, tokens)
    np.testing.assert_array_equal(kept[:7], dropped[:7])
    assert np.abs(kept[7:] - dropped[7:]).max() > 1e-3


# -- the command -----------------------------------------------------------------------------------


def test_the_command(command: Command, tmp_path: Path) -> None:
    data = data_folder(tmp_path / "code")
    text = tmp_path / "prose.txt"
    text.write_text("the sum of all bits is even or odd\n" * 40)
    model = StateTrackForCausalLM(
        StateTrackConfig(ModelConfig(vocab_size=VOCAB, hidden_size=16), training_length=16)
    )
    folders = [checkpoint(model, tmp_path / part / "run") for part in ("a", "b")]
    out, result = tmp_path / "out", tmp_path / "result.json"
    found = command(
        "lm", "perplexity", *folders, checkpoint(hf_model("llama"), tmp_path / "llama"),
        "--data", data, text, "--max-length", "64", "--chunks", "2", "--out", out, "--json", result,
    )  # fmt: skip
    assert found.code == 0, found.err
    rows = json.loads(result.read_text())["results"]
    names = ["a/run", "b/run", "llama"]
    assert [(r["checkpoint"], r["data"]) for r in rows] == [
        (name, data) for name in names for data in ("code", "prose.txt")
    ]
    assert rows[0]["running_perplexity"] == rows[2]["running_perplexity"]  # the same weights
    assert rows[0]["tokens"] == 128
    assert rows[4]["training_length"] is None
    assert rows[0]["bits_per_byte"] is None
    assert rows[1]["bits_per_byte"] > 0
    assert "Running perplexity by position" in found.out
    assert "No difference is claimed at 64 tokens on code between b/run and a/run" in found.out
    assert "llama is read in segments, with its cache." in found.out
    check_report_folder(out, "perplexity")  # the same command may write there again
    assert {"index.html", "running-perplexity.png", "running.csv", "windows.csv"} <= {
        file.name for file in out.iterdir()
    }


def test_refusals(command: Command, tmp_path: Path) -> None:
    model = StateTrackForCausalLM(StateTrackConfig(ModelConfig(vocab_size=VOCAB, hidden_size=16)))
    folder, data = checkpoint(model, tmp_path / "model"), data_folder(tmp_path / "code")
    other = tokenizer().from_str(tokenizer().to_str())
    other.add_tokens(["<odd>"])
    elsewhere = data_folder(tmp_path / "other", other)
    bare = tmp_path / "bare"
    model.save_pretrained(bare)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"\xe4\xf6\xfc")
    (tmp_path / "rows.jsonl").write_text('{"text": "the sum of all bits"}\n')

    def refused(*args: object) -> str:
        found = command("lm", "perplexity", *map(str, args))
        assert found.code == 2, found.out
        return found.err

    assert "CHECKPOINTS is missing" in refused("--data", data)
    assert "--data is missing" in refused(folder)
    assert "2 --names for 1 checkpoints" in refused(folder, "--data", data, "--names", "a", "b")
    assert "is not a folder" in refused(folder, "--data", data, "--out", tmp_path / "empty.txt")
    write_document(Document("language-model-pairs", ""), tmp_path / "pair")
    for used in (data, folder, tmp_path / "pair"):
        assert "is not empty" in refused(folder, "--data", data, "--out", used)
    assert "has no config.json" in refused(tmp_path / "nothing", "--data", data)
    assert "does not exist" in refused(folder, "--data", tmp_path / "nowhere")
    assert "is not a data folder" in refused(folder, "--data", tmp_path / "model")
    assert "another tokenizer" in refused(folder, "--data", elsewhere)
    assert "no tokenizer.json" in refused(bare, "--data", data)
    begun = data_folder(tmp_path / "begun", bos=True)
    assert (
        f"begin with BOS, but the tokenizer of {tmp_path.name} does not put it before a text"
        in refused(folder, "--data", begun)
    )
    with_bos = checkpoint(model, tmp_path / "with_bos")
    (with_bos / "tokenizer.json").write_text(train_tokenizer(TEXTS, VOCAB).to_json(bos=True))
    names = settings_json("<|eos|>", "<|bos|>", plain=True)
    (with_bos / "tokenizer_config.json").write_text(names)
    assert "do not begin with BOS, which the tokenizer of with_bos puts before a text" in refused(
        with_bos, "--data", data
    )
    assert "a chunk needs" in refused(with_bos, "--data", begun)  # the data are the right ones
    assert "is empty" in refused(folder, "--data", tmp_path / "empty.txt")
    assert "as text in UTF-8" in refused(folder, "--data", tmp_path / "latin.txt")
    rows = refused(folder, "--data", tmp_path / "rows.jsonl")
    remedy = rows.partition("`statetrack ")[2].partition("`")[0]
    remedy = remedy.replace("CHECKPOINT", str(folder)).replace("DIR", str(tmp_path / "rows"))
    assert command(*remedy.split()).code == 0
    assert "rows has 14 tokens; a chunk needs 16,385" in refused(
        folder, "--data", tmp_path / "rows"
    )
    assert "a chunk needs 10,001" in refused(folder, "--data", data, "--max-length", "10000")
    assert "at least 2" in refused(folder, "--data", data, "--max-length", "1")
    assert "at least 1" in refused(folder, "--data", data, "--chunks", "0")
    gpt2 = checkpoint(hf_model("gpt2"), tmp_path / "gpt2")
    assert "cannot read 128 tokens; its config allows 64 positions" in refused(
        gpt2, "--data", data, "--max-length", "128"
    )


def test_the_benchmark_of_memory() -> None:
    results = [
        lm_memory.run({"mixer": "delta_net", "length": length}, lambda text: None)
        | {"mixer": "delta_net"}
        for length in (16, 48)
    ]
    assert all(found["peak"] >= found["before"] > 0 for found in results)
    mixer, *sizes, ratio, _, limit, met = lm_memory._row(*results)
    assert mixer == "delta_net"
    assert float(ratio) >= 1.0
    assert (limit, met) == ("1.1", "yes" if float(ratio) <= 1.1 else "no")
    assert len(sizes) == 2
