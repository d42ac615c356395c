"""sLSTM against the package xlstm: the same weights, outputs, gradients and parameter counts."""

from __future__ import annotations

import pytest
import torch
import xlstm

from statetrack.layers import SLSTM
from statetrack.models import SequenceModel
from statetrack.models.convert.xlstm import xlstm_slstm
from statetrack.recipes import presets
from statetrack.testing.inputs import draw
from tests.ops.common import assert_close
from tests.peers.hf.xlstm_layers import assert_same_layer


def make_theirs(hidden_size: int, num_heads: int, conv_size: int, scale: float = 0.3):
    """Their layer in float64, no parameter at a special value."""
    torch.manual_seed(0)
    config = xlstm.sLSTMLayerConfig(
        embedding_dim=hidden_size,
        num_heads=num_heads,
        conv1d_kernel_size=conv_size,
        backend="vanilla",
    )
    layer = xlstm.sLSTMLayer(config).double()
    normal = draw(1)
    with torch.no_grad():
        for p in layer.parameters():
            p += scale * normal(*p.shape)
    return layer


@pytest.mark.parametrize(("hidden_size", "num_heads"), [(32, 4), (64, 1), (12, 3)])
@pytest.mark.parametrize("conv_size", [0, 4])
@pytest.mark.parametrize(("scale", "tolerance"), [(0.3, 1e-10), (3.0, 1e-6)])
def test_outputs_and_gradients(hidden_size, num_heads, conv_size, scale, tolerance):
    """With large recurrent weights the recurrence is chaotic, and rounding errors grow."""
    peer = make_theirs(hidden_size, num_heads, conv_size, scale)
    layer = SLSTM(hidden_size, num_heads=num_heads, conv_size=conv_size).double()
    layer.load_state_dict(xlstm_slstm(peer.state_dict()))
    assert_same_layer(layer, peer, xlstm_slstm, 33, tolerance, 10 * tolerance)


def test_states():
    """h, c, n and m after each part of a sequence, which goes on from them."""
    peer = make_theirs(32, 4, 0)
    layer = SLSTM(32, conv_size=0).double()
    layer.load_state_dict(xlstm_slstm(peer.state_dict()))
    x = draw(3)(2, 9, 32)
    theirs, state = None, None
    with torch.no_grad():
        for part in x.split(3, 1):
            expected, seen = peer(part, slstm_state=theirs, return_last_state=True)
            theirs = seen["slstm_state"]  # [4, B, hidden_size]
            y, state = layer(part, state)
            assert_close(y, expected, 1e-10)
            for mine, other in zip(state, theirs, strict=False):
                assert_close(mine.flatten(1), other, 1e-10)


@pytest.mark.parametrize(
    ("task", "layers", "hidden_size", "heads", "bias_init"),
    [
        ("parity", 2, 128, 4, "powerlaw_blockdependent"),
        ("modular_arithmetic", 3, 64, 1, "standard"),
    ],
)
def test_the_papers_models_at_first(task, layers, hidden_size, heads, bias_init):
    """The whole model of the paper's tables: its parameters, and the weights' sizes."""
    torch.manual_seed(0)
    config = presets.paper("slstm", task)
    model = SequenceModel(config.model)
    layer = xlstm.sLSTMLayerConfig(
        num_heads=heads, conv1d_kernel_size=0, backend="vanilla", bias_init=bias_init
    )
    peer = xlstm.xLSTMLMModel(
        xlstm.xLSTMLMModelConfig(
            slstm_block=xlstm.sLSTMBlockConfig(layer, xlstm.FeedForwardConfig()),
            slstm_at=list(range(layers)),
            context_length=256,
            num_blocks=layers,
            embedding_dim=hidden_size,
            vocab_size=config.model.vocab_size,
        )
    )
    peer.reset_parameters()
    assert model.num_parameters() == sum(p.numel() for p in peer.parameters())
    pairs = [(model.embedding, peer.token_embedding), (model.head, peer.lm_head)]
    for ours, theirs in zip(model.blocks, peer.xlstm_block_stack.blocks, strict=True):
        pairs += [(ours.mlp.gate_up, theirs.ffn.proj_up), (ours.mlp.down, theirs.ffn.proj_down)]
        weights = xlstm_slstm(theirs.xlstm.state_dict())
        assert not weights["R"].any()
        assert not ours.mixer.R.any()
        for name in ("W", "bias"):
            expected = weights[name].std().item()
            assert getattr(ours.mixer, name).std().item() == pytest.approx(expected, rel=0.15)
        if bias_init != "standard":
            assert_close(ours.mixer.bias, weights["bias"], 1e-6)
    for mine, other in pairs:
        assert mine.weight.shape == other.weight.shape
        expected = other.weight.std().item()
        assert mine.weight.std().item() == pytest.approx(expected, rel=0.15)
