"""Both ranges start alike and read alike; one report compares them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.reliability.pretraining import MODEL, small_config
from statetrack.errors import UserError
from statetrack.layers import MIXERS, AttentionConfig
from statetrack.lm.data import PackedBatch, PackedBatches
from statetrack.lm.pretraining.config import PretrainingConfig
from statetrack.lm.pretraining.loop import digest, pretrain
from statetrack.lm.pretraining.pair import Pair, pair_configs, pair_document
from statetrack.models import ModelConfig, SequenceModel
from statetrack.report.text import to_markdown


@pytest.mark.parametrize("name", [name for name, c in MIXERS.items() if not c.no_switch])
def test_initial_weights_are_the_same_in_both_ranges(name: str) -> None:
    config = PretrainingConfig(ModelConfig(vocab_size=16, hidden_size=32, mixer=MIXERS[name]()))
    digests = set()
    for one in pair_configs(config).values():
        torch.manual_seed(3)
        digests.add(digest(SequenceModel(one.model)))
    assert len(digests) == 1


def test_configurations_differ_in_the_switch_alone(data: Path) -> None:
    narrow, wide = pair_configs(small_config(data)).values()
    assert [m.allow_neg_eigval for m in narrow.model.pattern] == [False, False]
    assert [m.allow_neg_eigval for m in wide.model.pattern] == [True, True]
    assert replace(wide, model=narrow.model) == narrow


def test_models_without_the_switch_have_no_pair(data: Path) -> None:
    model = replace(MODEL, mixer=AttentionConfig(num_heads=2))
    with pytest.raises(UserError, match="one range only"):
        pair_configs(small_config(data, model=model))


def trained_pair(data: Path, folder: Path, **options: Any) -> None:
    for name, config in pair_configs(small_config(data, **options)).items():
        pretrain(config, folder / name)


def test_both_runs_read_the_same_tokens(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[int]] = []
    plain = PackedBatches.batch

    def watched(self: PackedBatches, *args: Any) -> PackedBatch:
        batch = plain(self, *args)
        read.append(batch.tokens.flatten().tolist())
        return batch

    monkeypatch.setattr(PackedBatches, "batch", watched)
    trained_pair(data, tmp_path)
    half = len(read) // 2
    assert half > 10
    assert read[:half] == read[half:]


def test_one_pair_in_a_report(data: Path, tmp_path: Path) -> None:
    trained_pair(data, tmp_path)
    pair = Pair.open(tmp_path)
    assert pair.same_start
    assert pair.difference != 0
    document = pair_document([tmp_path])
    assert "One seed does not tell" in document.summary[0]
    title = "Validation loss of [-1,1] minus [0,1]"
    table = next(table for table in document.tables if table.title == title)
    assert table.rows == [[0, f"{pair.difference:+.4f}", "yes"]]
    labels = [line.label for line in document.figures[0].series]
    assert labels == ["DeltaNet [0,1] + Mamba [0,1]", "DeltaNet [-1,1] + Mamba [-1,1]"]
    assert len(document.figures[0].series[0].x) == 2
    assert "Documents have no BOS before them" in to_markdown(document, ["a", "b"], ["c", "d"])


def test_pairs_of_several_seeds_have_an_interval(data: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        trained_pair(data, tmp_path / str(seed), seed=seed, steps=4)
    document = pair_document([tmp_path / "0", tmp_path / "1"])
    assert "2 seeds, 95 % interval" in document.summary[0]
    assert document.figures[0].series[3].label == "DeltaNet [-1,1] + Mamba [-1,1], seed 1"


def test_unfinished_pairs_have_no_report(data: Path, tmp_path: Path) -> None:
    configs = pair_configs(small_config(data))
    pretrain(configs["narrow"], tmp_path / "narrow")
    with pytest.raises(UserError, match="not a run of `lm train`"):
        Pair.open(tmp_path)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(configs["wide"], tmp_path / "wide", on_progress=stop)
    with pytest.raises(UserError, match="wide is not finished"):
        Pair.open(tmp_path)
