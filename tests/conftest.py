"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import torch

# Two test processes run on two cores; and one thread makes numbers repeatable.
torch.set_num_threads(1)

hypothesis.settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("suite")

ROOT = Path(__file__).parent.parent


@pytest.fixture
def golden() -> Path:
    """The folder with samples of the reference generators, if it lies beside the project."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no golden data: ../shared/data is not there")
    return folder
