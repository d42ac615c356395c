"""Runs that back-propagate over chunks are those that do not, except for rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack import memory
from statetrack.config import changed
from statetrack.errors import UserError
from statetrack.sweep.job import Job
from statetrack.training import RunConfig, train
from statetrack.training.loop import check_training_memory
from tests.training.small import small_config

SATURATED = {"saturation": 0.5, "saturation_start": 0.0, "saturation_full": 0.0}
CARRIED = {"task": "S3", "carry": 2, "carry_start": 0.0}


def chunked(config: RunConfig, chunk: int) -> RunConfig:
    return replace(config, training=replace(config.training, backward_chunk=chunk))


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"mixer": "delta_net,mamba"}, id="hybrid"),
        pytest.param({"mixer": "mlstm", "task": "S3"}, id="dense targets"),
        pytest.param(SATURATED, id="penalty"),
        pytest.param(CARRIED, id="carried state"),
    ],
)
def test_the_run_is_the_same(options: dict[str, Any], chunk: int, tmp_path: Path) -> None:
    config = small_config(allow_neg_eigval=True, clip=1.0, **options)
    whole = train(config, tmp_path / "whole")
    cut = train(chunked(config, chunk), tmp_path / "cut")
    for row, expected in zip(cut.metrics(), whole.metrics(), strict=True):
        assert row["kind"] == "train"
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert row["accuracy"] == expected["accuracy"]
        assert ("penalty" in row) == ("saturation" in options)
        assert row.get("penalty", 0.0) == pytest.approx(expected.get("penalty", 0.0), rel=1e-5)
    parameters = zip(cut.model().parameters(), whole.model().parameters(), strict=True)
    # AdamW's steps of lr have the sign of gradients that are near 0
    for mine, right in parameters:
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4)


def test_bfloat16(tmp_path: Path) -> None:
    config = small_config(precision="bf16")
    whole = train(config, tmp_path / "whole")
    cut = train(chunked(config, 5), tmp_path / "cut")
    for row, expected in zip(cut.metrics(), whole.metrics(), strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-2)


@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_has_a_token(chunk: int) -> None:
    with pytest.raises(UserError, match="backward_chunk must be at least 1"):
        small_config(backward_chunk=chunk)


def test_a_run_is_resumed_with_its_chunks(tmp_path: Path) -> None:
    config = small_config(backward_chunk=3, checkpoint_every=2)
    run = train(config, tmp_path / "run")
    assert train(config, run.folder, resume=True).config.training.backward_chunk == 3
    with pytest.raises(UserError, match=r"training.backward_chunk: 3, not 4"):
        train(chunked(config, 4), run.folder, resume=True)


def test_a_job_without_the_option_has_the_key_of_before_there_was_one() -> None:
    config = small_config()
    assert "backward_chunk" not in changed(config)["training"]
    assert Job(name="a", config=chunked(config, 5)).key != Job(name="a", config=config).key


def test_chunks_are_what_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 100_000_000)
    model = small_config().model
    with pytest.raises(UserError, match="on 4,000,000 tokens at once needs"):
        check_training_memory(model, 4, 1_000_000)
    check_training_memory(model, 4, 1_000_000, 1000)
    with pytest.raises(UserError, match="on 4 tokens at once needs"):  # the states of all chunks
        check_training_memory(model, 4, 1_000_000, 1)
