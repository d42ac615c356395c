"""A trained model that several files share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statetrack.layers import DeltaNetConfig
from statetrack.recipes.presets import demo_parity
from statetrack.training import Run, train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Parity up to length 40 with a plain DeltaNet, seconds of training."""
    config = demo_parity("delta_net", allow_neg_eigval=True, seed=0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=2, conv_size=0)
    model = replace(config.model, mixer=mixer, mlp_size=64)
    training = replace(config.training, saturation=0.0, steps=200, batch_size=32)
    config = replace(config, model=model, training=training)
    return train(config, tmp_path_factory.mktemp("plain") / "run")
