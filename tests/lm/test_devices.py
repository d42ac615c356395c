"""Language models on another device than the CPU, simulated: see tests/simulated_device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.reliability.pretraining import small_config, write_data
from statetrack.lm.audit import audit
from statetrack.lm.evaluation_data import open_data
from statetrack.lm.generation import continue_text
from statetrack.lm.load import load_language_model
from statetrack.lm.perplexity import make_reader, measure_perplexity
from statetrack.lm.pretraining.checkpoint import PretrainingRun
from statetrack.lm.pretraining.distributed import Processes
from statetrack.lm.pretraining.loop import _Loop, pretrain
from statetrack.lm.pretraining_job import PretrainingJob
from tests.conftest import Command
from tests.lm.common import HYBRID, PLAIN, causal_model, some_tokens, write_tokenizer
from tests.lm.evaluation import VOCAB, checkpoint, data_folder, hf_model, language
from tests.simulated_device import DEVICE, NAME, OnDevice, simulated_device


@pytest.mark.parametrize("name", ["ours", "mamba", "mamba2", "olmo_hybrid"])
def test_perplexity_and_audit(name: str, tmp_path: Path) -> None:
    ours = causal_model(replace(PLAIN, vocab_size=VOCAB))
    model = ours if name == "ours" else hf_model(name)
    here = language(model)
    data = open_data(data_folder(tmp_path / "data"), here, 200)
    expected = measure_perplexity(here, data, max_length=32, chunks=2)
    transitions = audit(here, data, tokens=128, length=64)
    with simulated_device():
        there = here._replace(model=model.to(DEVICE))
        found = measure_perplexity(there, data, max_length=32, chunks=2)
        audited = audit(there, data, tokens=128, length=64)
        assert make_reader(there).device == DEVICE
    assert found.how == expected.how
    assert found.totals == pytest.approx(expected.totals, rel=1e-4)
    assert audited.total() == pytest.approx(transitions.total(), abs=1e-3)


@torch.no_grad()
def test_generation() -> None:
    model, given = causal_model(HYBRID), some_tokens(2, 4)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(given, **options)
    with simulated_device():
        found = model.to(DEVICE).generate(given.to(DEVICE), **options)
        assert isinstance(found, OnDevice)
        found = found.cpu()
    assert torch.equal(found, expected)


def test_a_text(tmp_path: Path, command: Command) -> None:
    causal_model().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    expected = continue_text(load_language_model(tmp_path), "w3 w4", tokens=5, temperature=0)
    with simulated_device():
        loaded = load_language_model(tmp_path, device=NAME)
        assert loaded.model.device == DEVICE
        found = continue_text(loaded, "w3 w4", tokens=5, temperature=0)
        words = ("--prompt", "w3", "--tokens", "3", "--temperature", "0", "--device", NAME)
        assert command("lm", "generate", tmp_path, *words).code == 0
    assert found.tokens == expected.tokens


@pytest.mark.parametrize("what", ["perplexity", "audit"])
def test_commands(what: str, tmp_path: Path, command: Command) -> None:
    folder = checkpoint(hf_model("mamba"), tmp_path / "model")
    data = data_folder(tmp_path / "data")
    short = {"perplexity": ("--max-length", "32"), "audit": ("--tokens", "64", "--length", "64")}
    with simulated_device():
        words = ("--data", data, *short[what], "--device", NAME, "--out", tmp_path / "out")
        result = command("lm", what, folder, *words)
    assert result.code == 0, result.err
    assert NAME in (tmp_path / "out" / "index.html").read_text()
    refused = command("lm", what, folder, "--data", data, "--device", "cuda:9")
    assert refused.code == 2
    assert "there is no device cuda:9 here" in refused.err


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "data"
    write_data(folder)
    return folder


def test_pretraining(data: Path, tmp_path: Path) -> None:
    config = small_config(data, steps=4, checkpoint_every=2, log_every=2, sample_prompts=())
    here = pretrain(config, tmp_path / "cpu")
    assert here.devices == ["cpu"]
    with simulated_device():
        run = pretrain(replace(config, device=NAME), tmp_path / NAME)
        assert PretrainingRun.open(run.folder).devices == [NAME]
    rows = [row for row in run.metrics() if row["kind"] in ("train", "validation")]
    wanted = [row for row in here.metrics() if row["kind"] in ("train", "validation")]
    assert [row["loss"] for row in rows] == pytest.approx([r["loss"] for r in wanted], rel=1e-3)
    first = (r.metrics()[0]["weights_sha256"] for r in (run, here))
    assert len(set(first)) == 1
    # it goes on elsewhere
    longer = replace(config, device="cpu")
    run.checkpoint_folder(4).rename(tmp_path / "away")
    with simulated_device():
        again = pretrain(longer, run.folder)
    assert again.devices == [NAME, "cpu"]


def test_batches_are_made_ahead(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list[str]()
    step, micro_batches = _Loop.step, _Loop.micro_batches

    def record_step(self: _Loop, number: int) -> Any:
        events.append(f"step {number}")
        return step(self, number)

    def record_batches(self: _Loop, batches: Any, number: int) -> Any:
        if batches is self.data.batches:
            events.append(f"batch {number}")
        return micro_batches(self, batches, number)

    monkeypatch.setattr(_Loop, "step", record_step)
    monkeypatch.setattr(_Loop, "micro_batches", record_batches)
    config = small_config(data, steps=2, checkpoint_every=2, log_every=2, sample_prompts=())
    pretrain(config, tmp_path / "cpu")
    assert events == ["step 0", "batch 0", "step 1", "batch 1"]
    events.clear()
    with simulated_device():
        pretrain(replace(config, device=NAME), tmp_path / NAME)
    assert events == ["step 0", "batch 0", "batch 1", "step 1"]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch itself reads
def test_compiled_blocks(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrack.lm.pretraining import loop

    plain = loop.compile_blocks
    monkeypatch.setattr(loop, "compile_blocks", lambda model: plain(model, backend="eager"))
    config = small_config(data, steps=2, checkpoint_every=2, log_every=2, sample_prompts=())
    runs = [
        pretrain(replace(config, compile=compile), tmp_path / str(compile))
        for compile in (False, True)
    ]
    torch.compiler.reset()
    losses = [[row["loss"] for row in run.metrics() if "loss" in row] for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_processes_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrack.errors import UserError

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes have a GPU each: give cuda, not cuda:1"):
        Processes(device="cuda:1")


def test_the_device_is_no_part_of_the_key() -> None:
    job = PretrainingJob()
    assert job.on("cuda").device == "cuda"
    assert job.on("cuda").key == job.key
