"""Disks that are full: what is written is whole, and can be gone on with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reliability.folders import full_disk_after
from statetrack import cli
from statetrack.training import Run
from tests.training.refusal import snapshot
from tests.training.small import FLAGS


def full_disk(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """The disk is full after so many files."""
    monkeypatch.setattr(os, "fsync", full_disk_after(files))


# written in this order: config.json, metrics.jsonl, two files of step 2, two of step 4
@pytest.mark.parametrize("files", range(6))
def test_training_on_a_full_disk(
    files: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undisturbed = tmp_path / "undisturbed"
    assert cli.main(["train", *FLAGS, "--out", str(undisturbed)]) == 0
    capsys.readouterr()
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        full_disk(patch, files)
        assert cli.main(["train", *FLAGS, "--out", str(folder)]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"statetrack: error: .*No space left on device\n", err)
    # what is there is whole
    written = snapshot(folder)
    assert sum(content is not None for content in written.values()) == files
    whole = snapshot(undisturbed)
    for name, content in written.items():
        assert name == "metrics.jsonl" or content == whole[name]
    # and can be gone on with when there is space again
    again = ["--resume", str(folder)] if files else [*FLAGS, "--out", str(folder)]
    assert cli.main(["train", *again]) == 0
    end = "checkpoints/step-00000004.safetensors"
    assert snapshot(folder)[end] == whole[end]


@pytest.mark.parametrize("name", ["old.json", "new.json"])
def test_json_on_a_full_disk(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "old.json").write_text("an older result")
    full_disk(monkeypatch, 0)
    assert cli.main(["info", "--json", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"statetrack: error: .*No space left on device\n", err)
    assert snapshot(tmp_path) == {"old.json": b"an older result"}


LIMITED = """
import resource, sys
from benchmarks.reliability.folders import full_disk_after
from statetrack import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="no such limits")
def test_a_limit_of_the_system(tmp_path: Path) -> None:
    """Not a stand-in: the system lets the configuration be written, but no checkpoint."""
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "train", *FLAGS, "--out", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.fullmatch(r"statetrack: error: .*File too large\n", done.stderr)
    files = {name for name, content in snapshot(folder).items() if content is not None}
    assert files == {"config.json", "metrics.jsonl"}
    assert [row["step"] for row in Run.open(folder).metrics()] == [1, 2]
