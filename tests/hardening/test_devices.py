"""Hardening of models on another device than the CPU, simulated: see tests/simulated_device."""

from __future__ import annotations

import torch

from statetrack.hardening import harden
from statetrack.hardening.runs import learned
from statetrack.layers import DeltaNetConfig
from statetrack.models import ModelConfig, SequenceModel
from tests.hardening.test_harden import BATCH, PARITY, accuracy, noisy_parity
from tests.simulated_device import DEVICE, OnDevice, simulated_device


def test_a_model_on_the_device() -> None:
    expected = harden(noisy_parity(), BATCH)
    with simulated_device():
        model = noisy_parity().to(DEVICE)
        skill = learned(model, PARITY, BATCH)
        result = harden(model, BATCH)
        assert {type(p) for p in result.model.parameters()} == {OnDevice}
        assert {type(p) for p in model.parameters()} == {OnDevice}
        assert accuracy(result.model, 500) == 1.0
        assert result.automaton(PARITY.vocab).states == 2
    assert skill == learned(noisy_parity(), PARITY, BATCH)
    assert result.changed
    assert result.to_dict() == expected.to_dict()


def test_a_model_that_is_kept_is_the_given_one() -> None:
    mixer = DeltaNetConfig(allow_neg_eigval=True, conv_size=0)
    with simulated_device():
        torch.manual_seed(0)
        model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer))
        result = harden(model.to(DEVICE), BATCH)
        assert not result.changed
        assert result.model is model


def test_torchs_default_device_does_not_matter() -> None:
    model = noisy_parity()
    expected = harden(model, BATCH)
    with torch.device("meta"):
        result = harden(model, BATCH)
        read = result.automaton(PARITY.vocab)
    assert result.to_dict() == expected.to_dict()
    assert read.states == 2
