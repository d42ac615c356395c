"""Training on a finite set: what is validated and tested on was never trained on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack.models import SequenceModel
from statetrack.tasks import Task
from statetrack.training import Run, curve, evaluate, finite_training_set, train
from tests.conftest import Command
from tests.training.refusal import Refused, flags
from tests.training.small import small_config

LENGTH, SIZE = 7, 24  # of 2^6 = 64 strings
FINITE: dict[str, Any] = {"dataset_size": SIZE, "min_length": LENGTH, "max_length": LENGTH}
VALIDATION: dict[str, Any] = {"eval_every": 2, "eval_samples": 200}

Sequences = set[tuple[int, ...]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Sequences, Sequences]]:
    """What models have read since the last call: with gradients, and without."""
    found: dict[bool, Sequences] = {True: set(), False: set()}
    forward = SequenceModel.forward

    def recorded(self: SequenceModel, tokens: Tensor, *args: Any, **options: Any) -> Any:
        found[torch.is_grad_enabled()] |= set(map(tuple, tokens.tolist()))
        return forward(self, tokens, *args, **options)

    def take() -> tuple[Sequences, Sequences]:
        learned, asked = found[True].copy(), found[False].copy()
        found[True].clear()
        found[False].clear()
        return learned, asked

    monkeypatch.setattr(SequenceModel, "forward", recorded)
    return take


def unpadded(sequences: Sequences, task: Task, length: int) -> Sequences:
    """Those of a length, without their padding."""
    rows = {tuple(t for t in row if t != task.pad) for row in sequences}
    return {row for row in rows if len(row) == task.input_size(length)}


@pytest.mark.parametrize("validated", [(LENGTH, LENGTH), (4, 9)], ids=["one length", "a range"])
def test_splits_are_disjoint(
    validated: tuple[int, int], command: Command, tmp_path: Path, read: Any
) -> None:
    """All that the models of a run are given, from training to the command that tests it."""
    low, high = validated
    config = small_config(steps=12, **FINITE, **VALIDATION, eval_lengths=(f"{low}-{high}",))
    run = train(config, tmp_path / "run").folder
    learned, validation = read()
    assert command("eval", run, f"--lengths={low}-{high}", "--samples=200").code == 0
    _, test = read()
    args = (f"--lengths={LENGTH}", "--split=validation", "--samples=99", "--data-seed=3")
    assert command("eval", run, *args).code == 0
    _, again = read()
    assert len(learned) == SIZE
    validation, test, again = (
        unpadded(rows, config.task, LENGTH) for rows in (validation, test, again)
    )
    assert min(len(validation), len(test), len(again)) > 5
    assert learned.isdisjoint(validation | test | again)
    assert test.isdisjoint(validation | again)
    assert len(learned | validation | test | again) <= 64


def test_a_curve_asks_nothing_that_was_learned(command: Command, tmp_path: Path, read: Any) -> None:
    run = train(small_config(steps=12, **FINITE), tmp_path / "run")
    learned, _ = read()
    assert command("eval", run.folder, "--curve=12", "--lengths=5", "--samples=300").code == 0
    _, asked = read()
    asked = unpadded(asked, run.config.task, 12)
    prefixes = {row[: LENGTH - 1] for row in asked}
    assert len(learned) == SIZE
    assert len(prefixes) > 10
    assert learned.isdisjoint(prefixes)


def test_a_curve_of_samples_asks_nothing_that_was_learned(tmp_path: Path, read: Any) -> None:
    """Of a task whose prefixes are no sequences, evaluated length by length."""
    options = {"dataset_size": 16, "min_length": 5, "max_length": 5}
    config = small_config("chomsky/parity_check", steps=12, **options)
    run = train(config, tmp_path / "run")
    learned, _ = read()
    got = curve(run.model(), config.task, 8, samples=60, exclude=finite_training_set(config))
    _, asked = read()
    assert got.lengths.tolist() == list(range(1, 9))
    assert len(unpadded(learned, config.task, 5)) == 16
    assert len(unpadded(asked, config.task, 5)) > 3
    assert unpadded(learned, config.task, 5).isdisjoint(unpadded(asked, config.task, 5))
    assert len(unpadded(asked, config.task, 4)) > 10


def test_a_validation_row_is_an_evaluation_without_what_was_learned(tmp_path: Path) -> None:
    config = small_config(steps=4, **FINITE, **VALIDATION, eval_lengths=(f"{LENGTH}-9",))
    run = train(config, tmp_path / "run")
    rows = [row for row in run.metrics() if row["kind"] == "validation"]
    assert [row["step"] for row in rows] == [2, 4]
    again = evaluate(
        Run.open(run.folder).model(), config.task, (LENGTH, 9), samples=200, split="validation",
        exclude=finite_training_set(config),
    )  # fmt: skip
    assert rows[-1] == {"step": 4, "kind": "validation", **again.to_json(positions=False)}


def test_no_finite_set_unless_asked_for() -> None:
    assert finite_training_set(small_config()) is None


def test_nothing_is_left_to_validate_on(refused: Refused, tmp_path: Path) -> None:
    """Found out before a folder is made."""
    all_of_them = flags("--dataset-size=8", "--min-length=4", "--max-length=4", "--eval-every=2")
    within = ("--eval-lengths=3-5",)
    says = ["parity has no sequence of length 4 left for validation: 8 of them are trained on"]
    refused("train", *all_of_them, *within, "--out=run", says=says)
    # at other lengths there is enough
    config = small_config(
        steps=2, dataset_size=8, min_length=4, max_length=4, eval_every=2, eval_samples=8,
        eval_lengths=("5-9",),
    )  # fmt: skip
    train(config, tmp_path / "run")
    says = ["parity has no sequence of length 4 left for test: 8 of them are trained on"]
    refused("eval", "run", says=says)
