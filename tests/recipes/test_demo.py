"""The demo from end to end, as a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statetrack.training import Run

DEMO = [sys.executable, "-m", "statetrack", "demo"]
MODELS = {"Mamba [0,1]", "Mamba [-1,1]", "DeltaNet [0,1]", "DeltaNet [-1,1]"}


def test_smoke(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [*DEMO, "--smoke", "--seed", "3", "--out", str(out), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)  # which fails if there is anything else
    assert summary == json.loads((out / "results.json").read_text())
    assert summary["complete"] is True
    assert summary["smoke"] is True
    assert {row["model"] for row in summary["parity"]} == MODELS
    assert all(list(row["scores"]) == ["9"] for row in summary["parity"])
    assert len(summary["swaps"]) == 2
    for name in MODELS:  # people read the other stream
        assert name in done.stderr
    assert {"index.html", "report.md", "results.json", "runs"} <= {p.name for p in out.iterdir()}
    folders = sorted((out / "runs").iterdir())
    assert [f"runs/{f.name}" for f in folders] == sorted(r["run"] for r in summary["runs"])
    for folder in folders:
        run = Run.open(folder)
        assert run.checkpoint_steps() == [4]
        assert run.config.training.seed == 9
        assert run.model().num_parameters() > 0
        evaluation = json.loads((folder / "evaluation.json").read_text())
        assert evaluation.pop("schema") == 1
        assert evaluation in summary["runs"]
        assert len(evaluation["lengths"]) == len(evaluation["values"])


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_ctrl_c(tmp_path: Path) -> None:
    """Only the parent gets the signal; it ends its workers and leaves what it has, readable."""
    out = tmp_path / "demo"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*DEMO, "--out", str(out)], stdout=log, stderr=log, start_new_session=True
        )
    try:
        while process.poll() is None and not list(out.glob("runs/*/config.json")):
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=300) == 130
        wait_for_the_end_of_group(process.pid)
    finally:
        if group_exists(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = (tmp_path / "log").read_text()
    assert "Cut short: 0 of 14 runs are done" in text
    assert "Traceback" not in text
    assert json.loads((out / "results.json").read_text())["complete"] is False
    assert "Interrupted: not every run is here." in (out / "index.html").read_text()


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_the_end_of_group(group: int) -> None:
    """Python's own helper process ends a moment after its parent; a forgotten worker never."""
    for _ in range(100):
        if not group_exists(group):
            return
        time.sleep(0.1)
    raise AssertionError("a process has survived")
