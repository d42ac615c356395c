"""Trained models that several files share."""

from __future__ import annotations

import pytest

from statetrack.recipes.presets import demo_parity
from statetrack.training import Run, train


@pytest.fixture(scope="session")
def parity(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The demo's DeltaNet on parity with both ranges, trained: seconds each."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: train(demo_parity("delta_net", allow_neg_eigval=name == "[-1,1]"), folder / name)
        for name in ("[0,1]", "[-1,1]")
    }
