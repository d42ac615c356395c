"""A diagnosis of models on another device than the CPU, simulated: see tests/simulated_device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from statetrack.compiler import compile
from statetrack.diagnosis import diagnose
from statetrack.layers import DeltaProductConfig, MambaConfig
from statetrack.models import ModelConfig, SequenceModel
from statetrack.training import Run, train
from tests.conftest import Command
from tests.simulated_device import DEVICE, NAME, simulated_device
from tests.training.small import small_config


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return train(small_config(allow_neg_eigval=True, max_length=12), tmp_path / "run")


def test_a_run(run: Run, command: Command) -> None:
    options = {"max_length": 20, "samples": 8, "precision": "bf16"}
    expected = diagnose(run, **options)
    with simulated_device():
        found = diagnose(run, device=NAME, **options)
        result = command("diagnose", run.folder, "--max-length", "20", "--device", NAME)
    assert found.to_dict() == expected.to_dict()
    assert found.horizon.measured is not None
    assert result.code == 0


@pytest.mark.parametrize("mixer", [MambaConfig(), DeltaProductConfig(num_heads=2)])
def test_a_model_on_the_device(mixer) -> None:
    model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=8, num_layers=1, mixer=mixer))
    expected = diagnose(model, "1")
    with simulated_device():
        found = diagnose(model.to(DEVICE), "1")
        assert next(model.parameters()).device == DEVICE
    assert found.to_dict() == expected.to_dict()


@pytest.mark.parametrize("target", ["householder", "gated_deltaproduct"])
def test_a_compiled_network_on_the_device(target: str) -> None:
    net = compile("(aa)*", target)
    expected = diagnose(net)
    with simulated_device():
        found = diagnose(net.to(DEVICE))
    assert found.to_dict() == expected.to_dict()


def test_torchs_default_device_does_not_matter(run: Run) -> None:
    options = {"max_length": 20, "samples": 8, "precision": "bf16"}
    expected = diagnose(run, **options)
    with torch.device("meta"):
        found = diagnose(run, **options)
    assert found.to_dict() == expected.to_dict()
