"""What the tests of the benchmarks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import processes


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if `make peers` had not been run."""
    monkeypatch.setattr(
        processes, "ENVIRONMENTS", {n: tmp_path / n for n in processes.ENVIRONMENTS}
    )
