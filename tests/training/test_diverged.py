"""A loss that is no number ends a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from statetrack import cli
from statetrack.models import chunked
from statetrack.training import Run
from tests.training.refusal import flags
from tests.training.small import FLAGS


def nan_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    honest = chunked.cross_entropy

    def loss(*args: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return honest(*args, **options) * (float("nan") if calls == call else 1.0)

    monkeypatch.setattr(chunked, "cross_entropy", loss)


@pytest.mark.parametrize(
    ("step", "last"),
    [
        pytest.param(1, "none was written yet", id="before any checkpoint"),
        pytest.param(4, "new/checkpoints/step-00000002.safetensors", id="after one"),
    ],
)
def test_a_loss_that_is_no_number(
    step: int,
    last: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    nan_at(step, monkeypatch)
    assert cli.main(["train", *FLAGS, "--out=new"]) == 2
    err = capsys.readouterr().err
    expected = f"the loss is nan at step {step}; last good checkpoint: {last}"
    assert err == f"statetrack: error: {expected}\n"
    assert [row["step"] for row in Run.open(Path("new")).metrics()] == list(range(1, step))


def test_a_learning_rate_that_is_far_too_high(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = flags("--lr=1e30", "--warmup=0", "--steps=50", "--checkpoint-every=50")
    assert cli.main(["train", *wild, "--out", str(tmp_path / "new")]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(
        r"statetrack: error: the loss is (nan|inf) at step \d+; last good checkpoint: none .*\n",
        err,
    )


def test_a_good_checkpoint_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights are infinite after step 1, the loss is no number only at step 2."""
    wild = flags("--lr=1e39", "--warmup=0", "--checkpoint-every=1")
    assert cli.main(["train", *wild, "--out", str(tmp_path / "new")]) == 2
    last = capsys.readouterr().err.strip().partition("last good checkpoint: ")[2]
    assert last
    if last != "none was written yet":
        tensors = safetensors.torch.load_file(last)
        bad = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
        assert bad == []
