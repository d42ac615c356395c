"""Data that the tests of pretraining share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of 6,000 tokens."""
    from benchmarks.reliability.pretraining import write_data  # needs the extra

    folder = tmp_path_factory.mktemp("text") / "data"
    write_data(folder)
    return folder
