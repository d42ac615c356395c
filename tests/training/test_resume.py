"""A run that was killed and resumed ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from benchmarks.reliability.processes import rows, snapshot
from statetrack.errors import UserError
from statetrack.training import train
from tests.conftest import ROOT
from tests.training.small import small_config

TIMES = ("seconds", "cpu_seconds")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_and_resumed() -> None:
    """A few of what `python -m benchmarks kills` tries."""
    program = [sys.executable, "-m", "benchmarks", "kills", "--count=12", "--json=-"]
    done = subprocess.run(program, cwd=ROOT, env=ONE_THREAD, stdout=subprocess.PIPE, check=False)
    reported = json.loads(done.stdout)
    assert (reported["resumed"], reported["failed"]) == (12, [])
    moments = ["half-written file", "half-written line"]
    moments += [f"{when} {what}" for when in ("before", "after") for what in ("rename", "unlink")]
    assert {moment: reported["tried"][moment] for moment in moments} == dict.fromkeys(moments, 1)


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    config = small_config(steps=4)
    run = train(config, tmp_path / "run")
    whole = rows(run)
    with run.metrics_file.open("a") as file:
        file.write('{"step": 5, "kind": "tr')
    assert rows(run) == whole
    train(config, run.folder, resume=True)
    assert rows(run) == whole
    assert run.metrics_file.read_text().endswith("}\n")  # and it is gone


def test_repeated_steps_count_once_in_the_times(tmp_path: Path) -> None:
    """Metrics count the seconds of repeated steps once, which docs/run-folder.md promises."""
    config = small_config(steps=4, checkpoint_every=2)
    run = train(config, tmp_path / "run")
    for suffix in (".json", ".safetensors"):
        run.checkpoint_file(4).with_suffix(suffix).unlink()  # as if killed before it
    seconds = {1: 1.0, 2: 100.0, 3: 200.0, 4: 300.0}
    timed = [row | dict.fromkeys(TIMES, seconds[row["step"]]) for row in run.metrics()]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in timed))
    train(config, run.folder, resume=True)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]
    for name in TIMES:
        *_, kept, third, last = (row[name] for row in run.metrics())
        assert 100.0 == kept < third < last < 200.0


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    config = small_config(steps=4, checkpoint_every=2)
    run = train(config, tmp_path / "run")
    before = snapshot(run.folder)
    reported: list[Any] = []
    train(config, run.folder, resume=True, on_progress=reported.append)
    assert snapshot(run.folder) == before
    assert reported == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"steps": 8}, "training.steps: 4, not 8"),
        ({"seed": 1}, "training.seed: 0, not 1"),
        ({"mixer": "mamba"}, "model.mixer.name: 'delta_net', not 'mamba'"),
        ({"eval_lengths": ("5", "6")}, r"training.eval_lengths: \['5'\], not \['5', '6'\]"),
        ({"eval_lengths": ("6",)}, "training.eval_lengths.0: '5', not '6'"),
    ],
)
def test_another_configuration_is_refused(
    change: dict[str, Any], where: str, tmp_path: Path
) -> None:
    run = train(small_config(eval_lengths=("5",)), tmp_path / "run")
    before = snapshot(run.folder)
    with pytest.raises(UserError, match=f"another configuration: {where}.*; use --init-from"):
        train(small_config(**{"eval_lengths": ("5",), **change}), run.folder, resume=True)
    assert snapshot(run.folder) == before


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        train(small_config(), tmp_path / "run", resume=True)
    assert list(tmp_path.iterdir()) == []


def test_the_optimiser_counts_on(tmp_path: Path) -> None:
    """AdamW corrects its moments by the step: a resumed one that began at 0 would go astray."""
    config = small_config(steps=6, checkpoint_every=3)
    run = train(config, tmp_path / "run")
    for suffix in (".json", ".safetensors"):
        run.checkpoint_file(6).with_suffix(suffix).rename(tmp_path / f"end{suffix}")
    train(config, run.folder, resume=True)
    end = safetensors.torch.load_file(tmp_path / "end.safetensors")
    again = run.load(6)[1]
    assert all(torch.equal(again[name], end[name]) for name in end)
