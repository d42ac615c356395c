"""A run that was killed and resumed ends as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from statetrack.errors import UserError
from statetrack.files import write_json
from statetrack.training import Run, train
from tests.training import killed
from tests.training.refusal import snapshot
from tests.training.small import small_config

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

VALIDATION = {"eval_samples": 8, "eval_min_length": 13, "eval_max_length": 16}
CONFIG = small_config(
    mixer="delta_net,mamba",
    steps=30,
    checkpoint_every=8,
    eval_every=4,
    saturation=0.1,
    **VALIDATION,
)
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(CONFIG, tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that tests/training/killed.py leaves behind."""
    folder = tmp_path_factory.mktemp("victims")
    write_json(folder / "config.json", CONFIG.to_json())
    program = [sys.executable, killed.__file__, str(folder / "config.json"), str(folder)]
    subprocess.run(program, check=True, env=ONE_THREAD)
    return folder


def rows(run: Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics()]


def assert_same_end(run: Run, undisturbed: Run) -> None:
    assert run.config == undisturbed.config
    assert run.checkpoint_steps() == undisturbed.checkpoint_steps()
    for step in undisturbed.checkpoint_steps():
        one, two = run.load(step)[1], undisturbed.load(step)[1]
        assert one.keys() == two.keys()
        for name in two:  # weights and AdamW's moments, bit for bit
            assert torch.equal(one[name], two[name]), name
        files = [r.checkpoint_file(step).read_bytes() for r in (run, undisturbed)]
        assert files[0] == files[1]
    assert rows(run) == rows(undisturbed)


@pytest.mark.parametrize("moment", killed.MOMENTS)
def test_killed_at_an_exact_moment(
    moment: str, victims: Path, undisturbed: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(victims / moment, folder)
    begun = (folder / "config.json").exists()  # else there is no run yet, and one can be started
    if begun:
        assert Run.open(folder).checkpoint_steps()[-1:] != [30]  # it was not done
    run = train(CONFIG, folder, resume=begun)
    assert_same_end(run, undisturbed)
    # no litter: else a run that is killed often grows by a checkpoint each time
    assert snapshot(folder).keys() == snapshot(undisturbed.folder).keys()


SLOW = """
import sys, time
from pathlib import Path
from statetrack.training import read_config, train
train(read_config(Path(sys.argv[1])), Path(sys.argv[2]),
      on_progress=lambda p: time.sleep(600 if p.step == p.steps - 1 else 0.02))
"""


@pytest.mark.parametrize("lines", [1, 20])
def test_killed_from_outside(lines: int, tmp_path: Path, undisturbed: Run) -> None:
    """Killed as soon as there are so many lines of metrics, wherever it then is."""
    write_json(tmp_path / "config.json", CONFIG.to_json())
    folder = tmp_path / "run"
    program = [sys.executable, "-c", SLOW, str(tmp_path / "config.json"), str(folder)]
    with subprocess.Popen(program, env=ONE_THREAD) as process:
        while process.poll() is None and count_lines(folder / "metrics.jsonl") < lines:
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -9
    assert_same_end(train(CONFIG, folder, resume=True), undisturbed)


def count_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


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


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    config = small_config(steps=4, checkpoint_every=2)
    run = train(config, tmp_path / "run")
    before = snapshot(run.folder)
    told: list[Any] = []
    train(config, run.folder, resume=True, on_progress=told.append)
    assert snapshot(run.folder) == before
    assert told == []


@pytest.mark.parametrize(
    "change",
    [{"steps": 8}, {"seed": 1}, {"log_every": 2}, {"mixer": "mamba"}],
    ids=["steps", "seed", "log_every", "mixer"],
)
def test_another_configuration_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    run = train(small_config(), tmp_path / "run")
    before = snapshot(run.folder)
    with pytest.raises(UserError, match="another configuration"):
        train(small_config(**change), run.folder, resume=True)
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
