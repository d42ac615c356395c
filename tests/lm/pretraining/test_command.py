"""`statetrack lm train`: its options, a run and a pair, and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.reliability.pretraining import write_data
from benchmarks.reliability.processes import snapshot
from statetrack.cli.lm_train import _with_options
from statetrack.layers import MIXERS
from statetrack.lm.data import TokenData, write_tokens
from statetrack.lm.pretraining.checkpoint import PretrainingRun
from statetrack.lm.pretraining.presets import PRESETS
from tests.conftest import Command
from tests.lm.common import flip_bit
from tests.training.refusal import Refused

SIZES = [
    "--hidden-size=16", "--num-heads=2", "--num-layers=2", "--context-length=16", "--batch-size=4",
]  # fmt: skip
SHORT = [
    "--steps=4", "--warmup=1", "--validation-every=2", "--validation-batches=1", "--log-every=2",
    "--checkpoint-every=2",
]  # fmt: skip


@pytest.mark.parametrize("mixer", [*MIXERS, "delta_net,attention"])
def test_every_mixer_has_its_options(mixer: str, command: Command) -> None:
    shown = command("lm", "train", "--mixer", mixer, "--help").out
    assert "--micro-batch-size" in shown
    assert "--tie-embeddings" in shown
    assert "--data-fingerprint" not in shown


def test_a_run_and_its_continuation(data: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "run"
    line = ["lm", "train", "--data", data, "--out", out, *SIZES, *SHORT, "--json=-"]
    done = command(*line)
    assert done.code == 0
    told = json.loads(done.out)
    run = PretrainingRun.open(out)
    assert told["config"] == run.config.to_json()
    assert told["validation"]["loss"] == run.metrics()[-1]["loss"]
    assert "DeltaNet [0,1]: step 4/4, loss" in done.err
    assert "tokens/s" in done.err
    metrics = run.metrics()
    for again in (line, ["lm", "train", "--resume", out]):
        assert command(*again).code == 0
        assert run.metrics() == metrics


def test_corrupt_data_are_refused(data: Path, refused: Refused) -> None:
    """A single bit of a shard, which no read would notice."""
    shutil.copytree(data, "data")
    flip_bit(Path("data/validation-00000.bin"))
    says = ["data/validation-00000.bin is corrupt: its checksum differs"]
    refused("lm", "train", "--data=data", "--out=run", *SIZES, *SHORT, says=says)


def test_tokens_in_place_of_steps(data: Path, tmp_path: Path, command: Command) -> None:
    options = [*SIZES, *SHORT[2:], "--tokens=200", "--allow-neg-eigval", "--lr=1e-4"]
    assert command("lm", "train", "--data", data, "--out", tmp_path / "run", *options).code == 0
    config = PretrainingRun.open(tmp_path / "run").config
    assert (config.steps, config.warmup) == (3, 0)  # the preset's warm-up has more steps
    assert config.min_lr == pytest.approx(1e-5)  # a tenth of the peak, as in the preset
    assert config.model.title == "DeltaNet [-1,1]"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_without_options_is_unchanged(data: Path, name: str) -> None:
    base = PRESETS[name]
    made = _with_options(base, {}, None, data)
    opened = TokenData.open(data)
    assert made == replace(
        base,
        model=replace(base.model, vocab_size=opened.vocab_size),
        data_folder=str(data.resolve()),
        data_fingerprint=opened.fingerprint,
    )


def test_a_pair_and_its_continuation(data: Path, tmp_path: Path, command: Command) -> None:
    line = ["lm", "train", "--data", data, "--out", tmp_path / "pair", "--pair", *SIZES, *SHORT]
    done = command(*line, "--json", tmp_path / "told.json")
    assert done.code == 0
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["difference"] == pytest.approx(
        told["wide"]["validation"]["loss"] - told["narrow"]["validation"]["loss"]
    )
    page = (tmp_path / "pair" / "index.html").read_text()
    assert "DeltaNet [-1,1]" in page
    assert (tmp_path / "pair" / "validation-loss.png").exists()
    metrics = snapshot(tmp_path / "pair" / "wide")["metrics.jsonl"]
    done = command("lm", "train", "--resume", tmp_path / "pair")
    assert done.code == 0
    assert "Report: " in done.out
    assert snapshot(tmp_path / "pair" / "wide")["metrics.jsonl"] == metrics


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--out=run"], ["--data is missing", "statetrack lm data"]),
        (["--data=nowhere", "--out=run"], ["nowhere is not a data folder"]),
        (["--data=data"], ["give --out for a new run or --resume"]),
        (["--data=data", "--out=run", "--resume=run"], ["run/config.json does not exist"]),
        (["--data=data", "--out=run", "--preset=huge"], ["unknown preset 'huge'"]),
        (["--data=data", "--out=run", "--mixer=gpt"], ["unknown mixer 'gpt'"]),
        (["--data=data", "--out=run", "--context-length=9999"], ["too few for context length"]),
        (["--data=data", "--out=run", "--steps=9", "--tokens=9"], ["--steps or --tokens"]),
        (["--data=data", "--out=run", "--tokens=-5"], ["tokens must be", "at least 1; got -5"]),
        (["--data=data", "--out=run", "--tokens=2047"], ["--tokens 2,047 is less than a step, "]),
        (["--data=data", "--out=run", "--steps=0"], ["steps must be", "at least 1; got 0"]),
        (
            ["--data=data", "--out=run", "--batch-size=4", "--micro-batch-size=3"],
            ["cannot be split"],
        ),
        (["--data=data", "--out=run", "--shard"], ["start several: torchrun"]),
        (["--data=data", "--out=run", "--track=mlflow"], ["track must be one of"]),
        (["--data=data", "--out=run", "--pair", "--allow-neg-eigval"], ["--pair trains both"]),
        (["--data=data", "--out=data"], ["data exists and is not empty"]),
    ],
)
def test_what_is_refused(flags: list[str], says: list[str], refused: Refused) -> None:
    write_data(Path("data"))
    refused("lm", "train", *SHORT[1:], *flags, says=says)


def test_other_options_and_other_data_are_refused(command: Command, refused: Refused) -> None:
    write_data(Path("data"))
    line = ["lm", "train", "--data=data", "--out=run", *SIZES, *SHORT]
    assert command(*line).code == 0
    refused(*line, "--seed=1", says=["run holds a run with other options: seed: 0, not 1"])
    refused(*line, "--mixer=gla", says=["other options: model.mixer.name: 'delta_net', not 'gla'"])
    refused(*line, "--pair", says=["run holds a single run"])
    refused("lm", "train", "--resume=run", "--lr=0.1", says=["lr: 0.005, not 0.1"])
    refused("lm", "train", "--resume=run", "--preset=tiny", says=["the preset and mixer it has"])
    about = json.loads(Path("data/data.json").read_text())
    Path("data").rename("moved")
    refused("lm", "train", "--resume=run", says=["is not a data folder"])
    assert command("lm", "train", "--resume=run", "--data=moved").code == 0
    assert PretrainingRun.open(Path("run")).config.data_fingerprint == about["fingerprint"]
    write_other_data(Path("data"))
    refused("lm", "train", "--resume=run", "--data=data", says=["other options: "])


def write_other_data(folder: Path) -> None:
    documents = {"train": [[1, 2] * 50], "validation": [[1, 2] * 50]}
    write_tokens(folder, documents, vocab_size=32, eos=31, tokenizer="{}")
