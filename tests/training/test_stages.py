"""Runs in stages, runs that go on, start elsewhere or end early, and carried states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from statetrack import cli
from statetrack.errors import UserError
from statetrack.tasks import make_task
from statetrack.training import Callback, Run, RunConfig, Stage, train
from statetrack.training.batches import Batches
from statetrack.training.optim import learning_rate
from tests.conftest import Command
from tests.training.refusal import Refused
from tests.training.small import FLAGS, small_config

SWAPS = make_task("S5_only_swaps")
CHECKED = {"checkpoint_every": 2, "min_length": 5, "max_length": 5}


def staged(**training: Any) -> RunConfig:
    config = small_config("S5", steps=6, **{**CHECKED, **training})
    first = Stage(steps=3, task=SWAPS, lr=1e-2, schedule="constant", warmup=0.0)
    return replace(config, stages=(first, Stage(steps=3, max_length=8)))


class Interrupt(Callback):
    """Ends a run as Ctrl-C does after the row of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_row(self, run: Run, row: dict[str, Any]) -> None:
        if row["step"] == self.step:
            raise KeyboardInterrupt


def assert_same_weights(a: Run, b: Run) -> None:
    (step, x), (other, y) = a.load(), b.load()
    assert step == other
    assert x.keys() == y.keys()
    assert all(torch.equal(x[name], y[name]) for name in x)


def interrupted(config: RunConfig, folder: Path, step: int) -> Run:
    with pytest.raises(KeyboardInterrupt):
        train(config, folder, callbacks=[Interrupt(step)])
    return train(config, folder, resume=True)


# -- stages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_stage_that_is_learned_ends_and_resumes_exactly(tmp_path: Path, step: int) -> None:
    config = small_config("parity", steps=8, log_every=1, **CHECKED)
    stages = (Stage(steps=5, max_length=8, until=0.01), Stage(steps=3))
    config = replace(config, stages=stages)
    whole = train(config, tmp_path / "whole")
    (row,) = (row for row in whole.metrics() if row["kind"] == "stage")
    assert (row["step"], row["stage"]) == (3, 1)
    rates = [row["lr"] for row in whole.metrics() if row["kind"] == "train"]
    last = replace(config.training, steps=5)  # three of its own, two of the first stage
    assert rates[3:] == [learning_rate(last, i) for i in range(5)]
    assert_same_weights(whole, interrupted(config, tmp_path / "cut", step))


def test_lost_metrics_are_named_where_they_decide_on_stages(tmp_path: Path) -> None:
    config = small_config("parity", steps=8, log_every=1, **CHECKED)
    config = replace(config, stages=(Stage(steps=5, until=0.01), Stage(steps=3)))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", callbacks=[Interrupt(7)])
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match=r"metrics.jsonl lacks rows up to step 6"):
        train(config, tmp_path / "run", resume=True)


def test_a_stage_ends_only_after_three_rows(tmp_path: Path) -> None:
    config = small_config("parity", steps=8)
    config = replace(config, stages=(Stage(steps=6, until=0.9), Stage(steps=2)))
    data = Batches(config, None)
    found = [data.observe(i + 1, a) for i, a in enumerate((0.9, 0.89, 0.9, 0.95, 1.0))]
    assert found == [False, False, False, False, True]
    assert data.segments[1].start == 5
    for until, says in ((0.0, "above 0"), (1.5, "at most 1")):
        with pytest.raises(UserError, match=says):
            Stage(until=until)
    with pytest.raises(UserError, match="the last stage"):
        replace(config, stages=(Stage(steps=8, until=0.5),))


def test_stages_change_task_lengths_and_learning_rate(tmp_path: Path) -> None:
    config = staged()
    batches = Batches(config, None)
    for step in range(3):
        tokens = batches.batch(step).tokens[:, 1:]
        assert np.isin(tokens, SWAPS.inputs).all()
        assert tokens.shape[1] == 5
    later = np.concatenate([batches.batch(step).tokens[:, 1:6] for step in range(3, 6)])
    assert not np.isin(later, SWAPS.inputs).all()
    rows = [r for r in train(config, tmp_path / "run").metrics() if r["kind"] == "train"]
    second = config.segments()[1].config.training
    expected = [1e-2] * 3 + [learning_rate(second, i) for i in range(3)]
    assert [row["lr"] for row in rows] == expected


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_resume_inside_any_stage(tmp_path: Path, step: int) -> None:
    whole = train(staged(), tmp_path / "whole")
    assert_same_weights(interrupted(staged(), tmp_path / "cut", step), whole)
    assert Run.open(tmp_path / "cut").config == staged()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stages": (Stage(steps=5),)}, "the stages have 5 steps, but steps is 6"),
        ({"stages": (Stage(steps=6, task=make_task("Z60")),)}, "vocabulary"),
        ({"stages": (Stage(steps=6, max_length=4),)}, "below the least"),
    ],
)
def test_stages_that_do_not_fit(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        replace(small_config("S5", steps=6, **CHECKED), **changes)


# -- a finished run goes on ----------------------------------------------------------------------


def test_more_steps_at_a_constant_rate_are_those_of_a_longer_run(tmp_path: Path) -> None:
    options = {"schedule": "constant", "warmup": 0.0, "checkpoint_every": 2}
    train(small_config(steps=3, **options), tmp_path / "short")
    run = train(small_config(steps=3, **options), tmp_path / "short", resume=True, steps=6)
    assert_same_weights(run, train(small_config(steps=6, **options), tmp_path / "long"))
    assert Run.open(run.folder).config.training.steps == 6


def test_the_last_stage_of_a_finished_run_goes_on(tmp_path: Path) -> None:
    train(staged(), tmp_path / "run")
    run = train(staged(), tmp_path / "run", resume=True, steps=8)
    assert [stage.steps for stage in run.config.stages] == [3, 5]
    assert run.checkpoint_steps()[-1] == 8


def test_fewer_steps_are_refused(tmp_path: Path) -> None:
    train(small_config(steps=3), tmp_path / "run")
    with pytest.raises(UserError, match="has 3 steps already"):
        train(small_config(steps=3), tmp_path / "run", resume=True, steps=3)


def test_more_steps_on_the_command_line(tmp_path: Path) -> None:
    run = train(small_config(steps=3), tmp_path / "run")
    assert cli.main(["train", f"--resume={run.folder}", "--steps=5"]) == 0
    assert Run.open(run.folder).checkpoint_steps()[-1] == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [((), "has all 4 steps already"), (("--time-budget=1e-9",), "has ended already")],
)
def test_a_run_that_has_ended_is_told_so(
    tmp_path: Path, command: Command, options: tuple[str, ...], says: str
) -> None:
    assert "Done: " in command("train", *FLAGS, *options, "--out", tmp_path / "run").out
    code, out, _ = command("train", "--resume", tmp_path / "run")
    assert code == 0
    assert f"{tmp_path / 'run'} {says}; --steps N to go on." in out
    assert "Done: " not in out


# -- other weights to start with -----------------------------------------------------------------


def test_start_with_the_weights_of_another_task(tmp_path: Path) -> None:
    old = train(small_config("S5_only_swaps", **CHECKED), tmp_path / "old")
    config = small_config("S5", steps=2, **CHECKED)
    run = train(config, tmp_path / "new", init_from=old.folder)
    assert run.metrics()[0] == {
        "step": 0, "kind": "init", "from": str(old.folder), "from_step": 4, "new_tokens": 0,
    }  # fmt: skip
    # an interrupted run does not need the other one again
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", init_from=old.folder, callbacks=[Interrupt(1)])
    old.folder.rename(tmp_path / "moved")
    assert_same_weights(train(config, tmp_path / "cut", resume=True), run)


def test_another_vocabulary_is_matched_by_name(tmp_path: Path) -> None:
    old = train(small_config("Z3", **CHECKED), tmp_path / "old")
    run = train(small_config("Z5", steps=1, **CHECKED, lr=0.0, min_lr=0.0, weight_decay=0.0),
                tmp_path / "new", init_from=old.folder)  # fmt: skip
    assert run.metrics()[0]["new_tokens"] == 2  # "3" and "4"
    names = {name: i for i, name in enumerate(old.config.task.vocab)}
    for i, name in enumerate(run.config.task.vocab):
        if name in names:
            for matrix in ("embedding", "head"):
                new = getattr(run.model(), matrix).weight[i]
                assert torch.equal(new, getattr(old.model(), matrix).weight[names[name]])


def test_the_command_says_how_many_tokens_have_trained_weights(
    tmp_path: Path, command: Command
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    assert command("train", *FLAGS, "--task=parity", "--out", old).code == 0
    code, out, _ = command("train", *FLAGS, "--task=S3", "--init-from", old, "--out", new)
    assert code == 0
    shared = {*make_task("parity").vocab} & {*make_task("S3").vocab}
    assert f"{len(shared)} of {len(make_task('S3').vocab)} tokens, matched by name" in out
    assert f"weights of {old}, step 4;" in out


def test_the_command_takes_task_and_model_of_the_run_it_starts_from(
    tmp_path: Path, command: Command
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    assert command("train", *FLAGS, "--task=S3", "--out", old).code == 0
    assert command("train", "--init-from", old, "--steps=1", "--out", new).code == 0
    before, after = Run.open(old).config, Run.open(new).config
    assert (after.task, after.model) == (before.task, before.model)
    code, _, err = command("train", "--init-from", old, "--hidden-size=16", "--out", tmp_path / "x")
    assert (code, "another model: model.hidden_size: 8, not 16" in err) == (2, True)


def test_another_model_is_refused(tmp_path: Path) -> None:
    train(small_config(), tmp_path / "old")
    other = small_config(model={"hidden_size": 16})
    with pytest.raises(UserError, match=r"another model: model\.hidden_size: 8, not 16"):
        train(other, tmp_path / "new", init_from=tmp_path / "old")
    assert not (tmp_path / "new").exists()


# -- early ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason", "step"),
    [
        ({"stop_at_score": -9.0, "eval_every": 2}, "score", 2),
        ({"stop_below_score": 9.0, "stop_below_step": 3, "eval_every": 2}, "hopeless", 4),
        ({"time_budget": 1e-9}, "time", 1),
        ({"stop_at_score": 9.0, "eval_every": 2, "time_budget": 1e9}, None, 6),
    ],
)
def test_stops(tmp_path: Path, options: dict[str, Any], reason: str | None, step: int) -> None:
    config = small_config(steps=6, eval_samples=8, **options)
    run = train(config, tmp_path / "run")
    assert (run.stopped, run.checkpoint_steps()[-1], run.finished) == (reason, step, True)
    before = run.metrics()
    assert train(config, run.folder, resume=True).metrics() == before  # it stays where it is
    if reason is not None:  # it goes on if asked
        assert before[-1]["reason"] == reason
        again = train(config, run.folder, resume=True, steps=6)
        assert (again.stopped, again.checkpoint_steps()[-1]) == (None, 6)


def test_to_stop_at_a_score_there_must_be_one(refused: Refused) -> None:
    refused("train", "--stop-at-score=0.9", says=["eval_every and eval_lengths"])


def test_several_validation_ranges(tmp_path: Path) -> None:
    config = small_config(eval_every=2, eval_lengths=("20", "13-16"), eval_samples=8)
    rows = [r for r in train(config, tmp_path / "run").metrics() if r["kind"] == "validation"]
    ranges = [(row["step"], row["min_length"], row["max_length"]) for row in rows]
    assert ranges == [(2, 20, 20), (2, 13, 16), (4, 20, 20), (4, 13, 16)]


def test_times_go_on_when_a_run_is_resumed(tmp_path: Path) -> None:
    run = interrupted(small_config(steps=4, checkpoint_every=2), tmp_path / "run", 3)
    for name in ("seconds", "cpu_seconds"):
        times = [row[name] for row in run.metrics()]
        assert times == sorted(times)
        assert times[0] > 0


# -- the carried state ---------------------------------------------------------------------------

CARRY = {"steps": 8, "min_length": 6, "max_length": 6, "checkpoint_every": 4}


def carried(**options: Any) -> RunConfig:
    config = small_config(**CARRY, **options)
    training = replace(config.training, carry=4, carry_start=0.5)
    return replace(config, task=make_task("parity", supervision="dense"), training=training)


def test_parts_follow_one_another() -> None:
    batches = Batches(carried(), None)
    assert [batches.carries(step) for step in range(8)] == [False] * 4 + [True] * 4
    parts = [batches.batch(step) for step in range(4, 8)]
    tokens = np.concatenate([part.tokens for part in parts], axis=1)
    targets = np.concatenate([part.targets for part in parts], axis=1)
    assert tokens.shape == (4, 20)  # four parts of five tokens
    np.testing.assert_array_equal(targets, carried().task.solve(tokens))


@pytest.mark.parametrize("step", [3, 5, 7])
def test_resume_with_a_carried_state(tmp_path: Path, step: int) -> None:
    whole = train(carried(), tmp_path / "whole")
    assert_same_weights(interrupted(carried(), tmp_path / "cut", step), whole)


def test_the_state_matters(tmp_path: Path) -> None:
    """A model that is trained with a carried state sees other losses than without."""
    rows = train(carried(), tmp_path / "a").metrics()
    batches = Batches(carried(), None)
    model = Run.open(tmp_path / "a").model()
    tokens = torch.from_numpy(batches.batch(5).tokens)
    _, state = model(torch.from_numpy(batches.batch(4).tokens))
    assert not torch.equal(model(tokens, state)[0], model(tokens)[0])
    assert len(rows) == 8


def test_carry_needs_answers_everywhere() -> None:
    with pytest.raises(UserError, match="carry needs an answer at every position"):
        small_config(**CARRY, carry=4)
    with pytest.raises(UserError, match="checkpoint_every must be a multiple of carry"):
        small_config(**CARRY, carry=3)


# -- callbacks -----------------------------------------------------------------------------------


def test_callbacks_see_every_row(tmp_path: Path) -> None:
    received: list[Any] = []

    class Listener(Callback):
        def on_start(self, run: Run) -> None:
            received.append("start")

        def on_row(self, run: Run, row: dict[str, Any]) -> None:
            received.append(row)

        def on_end(self, run: Run) -> None:
            received.append("end")

    run = train(small_config(), tmp_path / "run", callbacks=[Listener()])
    assert received == ["start", *run.metrics(), "end"]
