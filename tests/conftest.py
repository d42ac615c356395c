"""What all tests share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import torch

from statetrack import cli
from statetrack.training import train
from tests.training.refusal import Refused, assert_refused
from tests.training.small import small_config

# Two test processes run on two cores; and one thread makes numbers repeatable.
torch.set_num_threads(1)

hypothesis.settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("suite")

# `make test-peers` runs these, in environments with other packages
collect_ignore = ["peers"]

ROOT = Path(__file__).parent.parent


class Result(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `statetrack ...` in this process."""
    monkeypatch.setenv("COLUMNS", "200")  # nothing is broken into lines

    def run(*args: str | Path) -> Result:
        try:
            code: Any = cli.main([str(arg) for arg in args])
        except SystemExit as end:
            code = end.code
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Refused:
    """Runs `statetrack ...` in an empty folder, which must end with exit code 2."""
    monkeypatch.chdir(tmp_path)
    return partial(assert_refused, capsys)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of four steps on lengths 3-40, with checkpoints of the second and the last."""
    return train(small_config(max_length=40, checkpoint_every=2), tmp_path / "run").folder


@pytest.fixture
def golden() -> Path:
    """The folder with samples of the reference generators, if it lies beside the project."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no golden data: ../shared/data is not there")
    return folder
