"""Training, accumulation, and runs that are interrupted and continued."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoTokenizer

from benchmarks.reliability.pretraining import MODEL, small_config
from benchmarks.reliability.processes import difference, rows, snapshot
from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig
from statetrack.lm.data import PackedBatches, TokenData
from statetrack.lm.load import load_language_model
from statetrack.lm.pretraining import loop, objective
from statetrack.lm.pretraining.checkpoint import PretrainingRun
from statetrack.lm.pretraining.loop import PretrainingProgress, pretrain
from statetrack.models import ModelConfig, SequenceModel
from statetrack.training import DivergedError
from statetrack.training.trackers import Tracker, scalars

OPEN = PretrainingRun.open


def losses(run: PretrainingRun, kind: str = "train") -> list[float]:
    return [row["loss"] for row in run.metrics() if row["kind"] == kind]


def weights(run: PretrainingRun) -> dict[str, torch.Tensor]:
    loaded = load_language_model(run.folder).model.sequence_model
    return {name: p.detach() for name, p in loaded.named_parameters()}


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainingRun:
    return pretrain(small_config(data), tmp_path_factory.mktemp("finished") / "run")


def test_a_run_learns(data: Path, tmp_path: Path) -> None:
    """The next token is one of three: log 3 = 1.1 nats at best, log 32 = 3.5 at first."""
    model = ModelConfig(vocab_size=32, hidden_size=32, mixer=DeltaNetConfig(num_heads=2))
    options = {"steps": 60, "batch_size": 16, "micro_batch_size": None, "checkpoint_every": 60}
    config = small_config(data, model=model, **options)
    run = pretrain(config, tmp_path / "run")
    assert losses(run)[0] > 3.3
    assert losses(run, "validation")[-1] < 1.6


def test_what_a_run_leaves(finished: PretrainingRun, data: Path) -> None:
    assert finished.finished
    assert finished.checkpoint_steps() == [8, 10]
    kinds = [row["kind"] for row in finished.metrics()]
    assert kinds[0] == "start"
    assert [kinds.count(k) for k in ("train", "validation", "sample")] == [5, 2, 2]
    sample = finished.metrics()[-1]
    assert sample["prompt"] == "w1 w2"
    assert 1 <= len(sample["text"].split()) <= 3  # the end of a document may come first
    loaded = load_language_model(finished.folder)
    assert loaded.training_length == 16
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("w3 w4").input_ids == [3, 4]
    others = AutoTokenizer.from_pretrained(finished.model_folder)
    assert others(["w3", "w3 w4"], padding=True).input_ids == [[3, 31], [3, 4]]
    assert (others.eos_token, others.bos_token) == ("w31", None)


def test_each_prompt_and_step_draws_other_numbers(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, loaded = list[int](), list[Path]()
    draw, load = loop.continue_text, loop.pretrained_tokenizer

    def spy(*args: Any, seed: int, **options: Any) -> Any:
        seeds.append(seed)
        return draw(*args, seed=seed, **options)

    def load_and_count(folder: Path, model: Any) -> Any:
        loaded.append(folder)
        return load(folder, model)

    monkeypatch.setattr(loop, "continue_text", spy)
    monkeypatch.setattr(loop, "pretrained_tokenizer", load_and_count)
    prompts = {"sample_prompts": ("w1 w2", "w1 w2"), "sample_tokens": 12}
    run = pretrain(small_config(data, **prompts), tmp_path / "run")
    samples = [row["text"] for row in run.metrics() if row["kind"] == "sample"]
    assert len(samples) == len(seeds) == len(set(seeds)) == 4  # two validations
    assert len(set(samples[:2])) == 2
    assert len(loaded) == 1


def test_the_model_has_the_logged_loss(finished: PretrainingRun, data: Path) -> None:
    """The last validation loss, computed anew from the saved model."""
    model = load_language_model(finished.folder).model.sequence_model
    held_out = PackedBatches(TokenData.open(data, "validation"), 16, 4, seed=0)
    total = 0.0
    with torch.no_grad():
        for step in range(2):
            tokens = held_out.batch(step).tokens
            logits, _ = model(tokens[:, :-1])
            logs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])
            total -= float(logs.mean()) / 2
    assert losses(finished, "validation")[-1] == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("at", [1, 4, 6, 9])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(
    at: int, finished: PretrainingRun, data: Path, tmp_path: Path
) -> None:
    def stop(progress: PretrainingProgress) -> None:
        if progress.step == at:
            raise KeyboardInterrupt

    config = small_config(data)
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, tmp_path / "run", on_progress=stop)
    steps = list[int]()
    pretrain(config, tmp_path / "run", on_progress=lambda p: steps.append(p.step))
    assert steps[0] == at - at % 4 + 1
    assert difference(tmp_path / "run", finished.folder, OPEN) is None


def test_a_finished_run_stays_as_it_is(finished: PretrainingRun, data: Path) -> None:
    def pieces() -> dict[str, Any]:
        return {k: v for k, v in snapshot(finished.folder).items() if k != "metrics.jsonl"}

    before, metrics = pieces(), finished.metrics()
    pretrain(small_config(data), finished.folder, on_progress=pytest.fail)
    assert pieces() == before
    assert finished.metrics() == metrics


def test_accumulation_is_the_large_batch(data: Path, tmp_path: Path) -> None:
    runs = {
        micro: pretrain(small_config(data, micro_batch_size=micro), tmp_path / str(micro))
        for micro in (None, 1)
    }
    assert losses(runs[1]) == pytest.approx(losses(runs[None]), rel=1e-5)
    assert losses(runs[1], "validation") == pytest.approx(
        losses(runs[None], "validation"), rel=1e-5
    )
    for name, weight in weights(runs[1]).items():
        torch.testing.assert_close(weight, weights(runs[None])[name], rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("apart", [False, True])
def test_chunks_give_the_whole_gradient(apart: bool, data: Path, tmp_path: Path) -> None:
    runs = {
        chunk: pretrain(
            small_config(data, keep_documents_apart=apart, backward_chunk=chunk, steps=6),
            tmp_path / str(chunk),
        )
        for chunk in (None, 5)
    }
    for kind in ("train", "validation"):
        assert losses(runs[5], kind) == pytest.approx(losses(runs[None], kind), rel=1e-5)
    for name, weight in weights(runs[5]).items():
        torch.testing.assert_close(weight, weights(runs[None])[name], rtol=1e-3, atol=2e-4)


def test_another_seed_is_another_run(data: Path, finished: PretrainingRun, tmp_path: Path) -> None:
    other = pretrain(small_config(data, seed=1, steps=4), tmp_path / "run")
    assert other.metrics()[0]["weights_sha256"] != finished.metrics()[0]["weights_sha256"]


@pytest.mark.parametrize(
    "options", [{"precision": "bf16"}, {"keep_documents_apart": True}, {"clip": None}]
)
def test_other_options_change_the_numbers_a_little(
    options: dict[str, Any], data: Path, finished: PretrainingRun, tmp_path: Path
) -> None:
    other = pretrain(small_config(data, **options), tmp_path / "run")
    assert losses(other) != losses(finished)
    assert losses(other) == pytest.approx(losses(finished), rel=0.1)


def test_slow_bf16_is_announced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective, "has_bf16_products", lambda: False)
    with pytest.warns(UserWarning, match="no instructions for bfloat16.*--precision fp32"):
        pretrain(small_config(data, precision="bf16", steps=1), tmp_path / "run")


def test_documents_kept_apart(data: Path, tmp_path: Path) -> None:
    """With the first step's weights, the loss is that of each document read alone."""
    config = small_config(data, keep_documents_apart=True, steps=1, batch_size=40, log_every=1)
    run = pretrain(config, tmp_path / "run")
    torch.manual_seed(config.seed)
    model = SequenceModel(MODEL)
    batch = PackedBatches(TokenData.open(data), 16, 40, config.seed, True).batch(0)
    assert batch.cu_seqlens is not None
    inputs, targets = batch.tokens[:, :-1].flatten(), batch.tokens[:, 1:].flatten()
    bounds = batch.cu_seqlens.tolist()
    assert len(bounds) > 41  # some windows have several documents
    total = 0.0
    with torch.no_grad():
        for low, high in pairwise(bounds):
            logits, _ = model(inputs[None, low:high])
            logs = logits[0].log_softmax(-1).gather(-1, targets[low:high, None])
            total -= float(logs.sum())
    assert losses(run)[0] == pytest.approx(total / len(targets), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"model": replace(MODEL, vocab_size=33)},
            "has 32 tokens, but the model's vocab_size is 33",
        ),
        ({"data_fingerprint": "0"}, "has changed since the run began"),
    ],
)
def test_data_that_do_not_fit(
    options: dict[str, Any], says: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says):
        pretrain(small_config(data, **options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tied_embeddings(data: Path, tmp_path: Path) -> None:
    run = pretrain(small_config(data, model=replace(MODEL, tie_embeddings=True)), tmp_path / "run")
    model = load_language_model(run.folder).model.sequence_model
    assert model.head.weight is model.embedding.weight
    last = safetensors.torch.load_file(run.checkpoint_folder(10) / "model.safetensors")
    assert torch.equal(last["model.embedding.weight"], model.embedding.weight)


def test_trackers_get_every_row(data: Path, tmp_path: Path) -> None:
    class Recorder(Tracker):
        rows: list[dict[str, float]] = []  # noqa: RUF012

        def start(self, run: Any) -> None:
            assert run.config.to_json()["schema"] == 1

        def send(self, step: int, values: dict[str, float]) -> None:
            self.rows.append(values)

        def close(self) -> None:
            self.rows.append({})

    recorder = Recorder()
    run = pretrain(small_config(data), tmp_path / "run", trackers=[recorder])
    assert recorder.rows == [*(scalars(row) for row in run.metrics()[1:]), {}]
    assert "validation/loss" in {name for row in recorder.rows for name in row}


def test_a_run_that_diverges_says_so(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(self: SequenceModel, *given: Any, **options: Any) -> Any:
        logits, state = plain(self, *given, **options)
        return logits * float("nan"), state

    plain = SequenceModel.forward
    monkeypatch.setattr(SequenceModel, "forward", spoilt)
    with pytest.raises(DivergedError, match=r"the loss is nan at step 1; .*none was written yet"):
        pretrain(small_config(data), tmp_path / "run")


def test_progress_has_speed_and_time() -> None:
    shown = PretrainingProgress(5, 10, 2.5, 12345.6, 3725.2).text
    assert shown == "step 5/10, loss 2.5000, 12,346 tokens/s, 1:02:05 left"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_damaged_checkpoint_is_named(name: str, data: Path, tmp_path: Path) -> None:
    run = pretrain(small_config(data), tmp_path / "run")
    whole = rows(run)
    last = run.checkpoint_folder(10)
    damaged = run.checkpoint_folder(8) / name
    for file in sorted(last.iterdir()):
        file.unlink()
    last.rmdir()
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"step-0000008 is damaged: .*; delete the folder"):
        pretrain(small_config(data), run.folder)
    content[-1] ^= 1
    damaged.write_bytes(bytes(content))
    pretrain(small_config(data), run.folder)
    assert rows(run) == whole
