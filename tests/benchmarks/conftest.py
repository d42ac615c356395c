"""What the tests of the benchmarks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import processes
from benchmarks.__main__ import main
from tests.conftest import Command, Result


@pytest.fixture
def benchmark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `python -m benchmarks ...` in this process."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: Any) -> Result:
        return Result(main([str(arg) for arg in args]), *capsys.readouterr())

    return run


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if `make peers` had not been run."""
    monkeypatch.setattr(
        processes, "ENVIRONMENTS", {n: tmp_path / n for n in processes.ENVIRONMENTS}
    )
