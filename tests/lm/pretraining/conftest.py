"""Data and runs that the tests of pretraining share."""

from __future__ import annotations

from pathlib import Path

import pytest

from statetrack.lm.extra import missing_packages

if missing_packages():
    collect_ignore_glob = ["test_*.py"]
else:
    from benchmarks.reliability.pretraining import write_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of 6,000 tokens."""
    folder = tmp_path_factory.mktemp("text") / "data"
    write_data(folder)
    return folder
