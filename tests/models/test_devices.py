"""Layers and models on another device than the CPU, simulated: see tests/simulated_device."""

from __future__ import annotations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import MIXERS, MixerConfig
from statetrack.layers.base import VARIANT_SIZE
from statetrack.models import ModelConfig, SequenceModel
from statetrack.testing import check_layer
from tests.layers.common import LAYERS
from tests.models.common import MODELS, assert_same_states, make_model, small, tokens
from tests.ops.common import assert_close
from tests.simulated_device import DEVICE, OnDevice, Waits, simulated_device

CHECKS = ["single_token", "left_padding", "packed", "eigenvalues"]


@pytest.mark.parametrize("config", LAYERS)
def test_layers(config: MixerConfig) -> None:
    """Passes, steps, masks, packed sequences and transitions."""
    with simulated_device():
        layer = config.build(VARIANT_SIZE).to(DEVICE)
        assert {type(part) for part in layer.init_state(2)} == {OnDevice}
        report = check_layer(
            lambda: config.build(VARIANT_SIZE).to(DEVICE), only=CHECKS, exact=torch.float32
        )
    report.raise_for_failures()


@torch.no_grad()
@pytest.mark.parametrize("config", LAYERS)
def test_torchs_default_device_does_not_matter_to_layers(config: MixerConfig) -> None:
    layer = config.build(VARIANT_SIZE)
    x, mask = torch.randn(2, 5, VARIANT_SIZE), torch.tensor([[1, 1, 1, 0, 0], [1] * 5]).bool()
    bounds = torch.tensor([0, 2, 5])
    expected, _ = layer(x)
    first, middle = layer(x[:, :3])
    last, _ = layer(x[:, 3:], middle)
    with torch.device("meta"):
        assert_close(layer(x)[0], expected, 1e-6)
        state = layer.init_state(2)
        decoder = layer.decoder(2)
        plain = state
        for t in range(5):
            y, state = layer.step(x[:, t], state)
            decoded, plain = decoder.step(x[:, t], plain)
            assert_close(y, expected[:, t], 1e-4)
            assert_close(decoded, expected[:, t], 1e-4)
        assert layer(x, mask=mask)[0].device.type == "cpu"
        assert layer(x[:1], cu_seqlens=bounds)[0].device.type == "cpu"
        assert_close(layer(x[:, 3:], middle)[0], last, 1e-6)
        transition = layer.transitions(x)
        if transition is not None:
            assert transition.eigvals().device.type == "cpu"
            assert transition.product().dense().device.type == "cpu"
    assert first.device.type == "cpu"


# the simulation replaces parameters, which unties them; torch moves them in place
UNTIED = [param for param in MODELS if not param.values[0].tie_embeddings]


@torch.no_grad()
@pytest.mark.parametrize("config", UNTIED)
def test_models(config) -> None:
    model, x = make_model(config), tokens(2, 6)
    expected, end = model(x)
    with simulated_device():
        moved = make_model(config).to(DEVICE)
        assert {type(t) for t in moved.state_dict().values()} == {OnDevice}
        logits, state = moved(x.to(DEVICE))
        state_by_step = moved.init_state(2)
        for t in range(6):
            one, state_by_step = moved.step(x[:, t].to(DEVICE), state_by_step)
        found = [logits.cpu(), one.cpu()]
        ends = [
            tuple(type(layer)(*(part.cpu() for part in layer)) for layer in states)
            for states in (state, state_by_step)
        ]
    assert_close(found[0], expected, 1e-9)
    assert_close(found[1], expected[:, -1], 1e-9)
    assert_same_states(ends[0], end, 1e-9)
    assert_same_states(ends[1], end, 1e-9)


@torch.no_grad()
@pytest.mark.parametrize("config", [m for m in MODELS if m.values[0].experts is None])
def test_a_decoder_takes_plain_steps_on_another_device(config) -> None:
    """The recorded kernels are the CPU's; real meta tensors, since a decoder refuses modes.

    Tensors without values cannot choose experts.
    """
    model = SequenceModel(config).to("meta")
    assert {t.device.type for t in model.state_dict().values()} == {"meta"}
    decoder, state = model.decoder(2), model.init_state(2)
    for _ in range(2):
        logits, state = decoder.step(torch.zeros(2, dtype=torch.int64, device="meta"), state)
    assert logits.device.type == "meta"
    assert {part.device.type for layer in state for part in layer} == {"meta"}
    assert not any(block.recorded for block in decoder.blocks)


@pytest.mark.native
@torch.no_grad()
def test_a_decoder_of_the_cpu_refuses_other_devices() -> None:
    model = SequenceModel(small())
    decoder = model.blocks[0].decoder(2)
    assert decoder.recorded
    x = torch.zeros(2, model.config.hidden_size, device="meta")
    with pytest.raises(UserError, match="takes float32 tensors on the CPU; got"):
        decoder.step(x, model.blocks[0].init_state(2))


@pytest.mark.parametrize("name", MIXERS)
def test_packed_sequences_wait_for_a_gpu_once_in_all_layers_together(name: str) -> None:
    """Once if their boundaries are on it, else never."""
    mixer = MIXERS[name].variants()[0]
    config = ModelConfig(vocab_size=5, hidden_size=12, num_layers=3, mixer=mixer)
    tokens, bounds = torch.randint(5, (1, 9)), torch.tensor([0, 1, 6, 9])
    with simulated_device(), Waits() as waits:
        model = SequenceModel(config).to(DEVICE)
        tokens = tokens.to(DEVICE)
        for given, expected in ((bounds, []), (bounds.to(DEVICE), ["_to_copy"])):
            waits.found.clear()
            logits, _ = model(tokens, cu_seqlens=given)
            logits.sum().backward()
            assert waits.found == expected
