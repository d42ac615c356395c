"""The gates of diagonal layers: what is rounded, and what the new weights do."""

from __future__ import annotations

import pytest
import torch

from statetrack.hardening.diagonal import read_gates, round_gates
from statetrack.hardening.inputs import LayerInputs
from statetrack.layers import DiagonalRNNConfig, GLAConfig, MambaConfig
from statetrack.models import ModelConfig, SequenceModel
from tests.hardening.test_harden import BATCH


@pytest.mark.parametrize("config", [MambaConfig, GLAConfig, DiagonalRNNConfig])
def test_gates_are_rounded(config):
    """A gate of 1 keeps the state, -1 flips it, 0 forgets it."""
    torch.manual_seed(0)
    options = {} if config is DiagonalRNNConfig else {"conv_size": 0}
    mixer = config(allow_neg_eigval=True, **options)
    model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=64, num_layers=1, mixer=mixer))
    with torch.no_grad():
        for name, p in model.blocks[0].mixer.named_parameters():
            if name.partition(".")[0] in ("x_proj", "dt_proj", "decay_proj", "W_A", "in_proj"):
                p.normal_(std=0.3)
    model.double()
    inputs = LayerInputs.of_tokens(model, BATCH)
    layer = inputs.mixer(model)
    gates = read_gates(layer, inputs.x)
    rounded = round_gates(gates, inputs.recurring, 0.3, 0.5, layer.shared_step_size)
    assert layer.shared_step_size == (config is MambaConfig)
    kept, flips, zeros = (rounded.targets == value for value in (1, -1, 0))
    keeps = kept.all(-1)
    assert keeps.any()
    assert torch.equal(kept, keeps[..., None].expand_as(kept))
    assert flips.any()
    assert zeros.any()
    assert rounded.decays.any()
    silent = torch.zeros_like(rounded.slow)
    layer = layer.with_gates(inputs.x, rounded.targets, silent)
    after = read_gates(layer, inputs.x)
    made = inputs.replace_mixer(model, layer)
    assert (after[kept] == 1).all()
    assert (after[flips] == -1).all()
    assert (after[zeros].abs() < 1e-12).all()
    rest = ~kept & ~flips & ~zeros
    if config is MambaConfig:  # the others of a state that forgets: none that acts
        rest &= ~zeros.any(0)
    assert torch.allclose(after[rest], gates[rest], atol=1e-12)
    dims = 2 if config is GLAConfig else 1  # the dimensions of a state that are channels
    with torch.no_grad():
        _, (first,) = made(torch.tensor([[1, 2, 2, 1, 2]]))
        for i, token in enumerate(inputs.token_ids.tolist()):
            _, (then,) = made(torch.tensor([[token]]), (first,))
            channels = keeps[i].view(first[0].shape[1 : 1 + dims])
            assert torch.allclose(then[0][0][channels], first[0][0][channels], atol=1e-12)
        every = torch.ones_like(rounded.slow)
        layer = inputs.mixer(model).with_gates(inputs.x, rounded.targets, every)
        assert (
            inputs.replace_mixer(model, layer)(torch.tensor([[1, 2, 2, 1]]))[1][0][0].abs().max()
            < 1e-12
        )


def test_two_tokens_that_flip_a_channel_drift():
    gates = torch.tensor([[-0.99, -0.99, 1.0], [-0.98, 0.999, 0.2]]).double()[..., None]
    every = torch.ones(2, dtype=torch.bool)
    rounded = round_gates(gates, every, 0.1, 0.0, shared_step_size=False)
    assert rounded.drifts.tolist() == [True, False, False]
    assert rounded.slow.tolist() == [True, False, False]
    assert rounded.decays[..., 0].tolist() == [[False] * 3, [False, False, True]]
