"""What all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import torch

from statetrack import cli

# Two test processes run on two cores; and one thread makes numbers repeatable.
torch.set_num_threads(1)

hypothesis.settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("suite")

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
def golden() -> Path:
    """The folder with samples of the reference generators, if it lies beside the project."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no golden data: ../shared/data is not there")
    return folder
