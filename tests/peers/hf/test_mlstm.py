"""mLSTM against the package xlstm: the same weights, outputs, gradients and parameter counts."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import xlstm

from statetrack.layers import MLSTM
from statetrack.models import SequenceModel
from statetrack.models.convert.xlstm import xlstm_mlstm
from statetrack.recipes import presets
from statetrack.testing.inputs import draw
from tests.ops.common import assert_close
from tests.peers.hf.xlstm_layers import assert_same_layer

T = 33


def make_theirs(hidden_size: int, **options):
    """Their layer in float64, no parameter at a special value."""
    torch.manual_seed(0)
    config = xlstm.mLSTMLayerConfig(embedding_dim=hidden_size, context_length=T, **options)
    layer = xlstm.mLSTMLayer(config).double()
    normal = draw(1)
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.2 * normal(*p.shape)
    return layer


@pytest.mark.parametrize(
    ("hidden_size", "theirs", "ours"),
    [
        (32, {}, {}),
        (64, {"num_heads": 1}, {"num_heads": 1}),
        (
            20,
            {"num_heads": 8, "conv1d_kernel_size": 2, "qkv_proj_blocksize": 16, "proj_factor": 4.0},
            {"num_heads": 8, "conv_size": 2, "qkv_block_size": 16, "expand": 4.0},
        ),
    ],
    ids=["plain", "one-head", "wide"],
)
@pytest.mark.parametrize(("eps", "tolerance"), [(0.0, 1e-10), (1e-6, 1e-4)])
def test_outputs_and_gradients(hidden_size, theirs, ours, eps, tolerance):
    """They add eps = 1e-6 to the normaliser, at the stabiliser's scale; without it we agree."""
    peer = make_theirs(hidden_size, **theirs)
    peer.mlstm_cell.backend_fn = partial(peer.mlstm_cell.backend_fn, eps=eps)
    layer = MLSTM(hidden_size, **ours).double()
    layer.load_state_dict(xlstm_mlstm(peer.state_dict()))
    assert_same_layer(layer, peer, xlstm_mlstm, T, tolerance, tolerance)


def test_steps():
    peer = make_theirs(32)
    layer = MLSTM(32).double()
    layer.load_state_dict(xlstm_mlstm(peer.state_dict()))
    x = draw(3)(2, 9, 32)
    theirs: dict = {}
    state = layer.init_state(2)
    with torch.no_grad():
        for x_t in x.unbind(1):
            expected, theirs = peer.step(x_t[:, None], **theirs)
            y, state = layer.step(x_t, state)
            assert_close(y, expected[:, 0], 1e-4)


@pytest.mark.parametrize(
    ("task", "layers", "hidden_size", "heads"),
    [("parity", 2, 128, 4), ("modular_arithmetic", 3, 64, 1)],
)
def test_parameter_counts_and_spread_of_the_papers_models(task, layers, hidden_size, heads):
    """The whole model of the paper's tables, theirs and ours; and the weights' sizes at first."""
    config = presets.paper("mlstm", task)
    model = SequenceModel(config.model)
    block = xlstm.mLSTMBlockConfig(xlstm.mLSTMLayerConfig(num_heads=heads))
    peer = xlstm.xLSTMLMModel(
        xlstm.xLSTMLMModelConfig(
            mlstm_block=block,
            context_length=256,
            num_blocks=layers,
            embedding_dim=hidden_size,
            vocab_size=config.model.vocab_size,
        )
    )
    peer.reset_parameters()
    assert model.num_parameters() == sum(p.numel() for p in peer.parameters())
    for ours, theirs in zip(model.blocks, peer.xlstm_block_stack.blocks, strict=True):
        weights = xlstm_mlstm(theirs.xlstm.state_dict())
        for name in ("up_proj", "q_proj", "v_proj", "down_proj", "conv"):
            mine = ours.mixer.get_parameter(f"{name}.weight")
            expected = weights[f"{name}.weight"].std().item()
            assert mine.std().item() == pytest.approx(expected, rel=0.15)
    expected = peer.lm_head.weight.std().item()
    assert model.head.weight.std().item() == pytest.approx(expected, rel=0.15)
