"""Whole models of the package xlstm that have both mLSTM and sLSTM, in ours."""

from __future__ import annotations

import pytest
import torch
import xlstm
from torch import Tensor

from statetrack.layers import MLSTMConfig, SLSTMConfig
from statetrack.models import ModelConfig, SequenceModel
from statetrack.models.convert.weights import prefixed
from statetrack.models.convert.xlstm import xlstm_mlstm, xlstm_slstm
from statetrack.testing.inputs import draw
from tests.ops.common import assert_close

VOCABULARY, WIDTH, T = 7, 32, 20


def make_theirs(num_blocks: int, slstm_at: list[int]):
    """Their model in float64, no parameter at a special value."""
    torch.manual_seed(0)
    slstm = xlstm.sLSTMLayerConfig(backend="vanilla")
    model = xlstm.xLSTMLMModel(
        xlstm.xLSTMLMModelConfig(
            mlstm_block=xlstm.mLSTMBlockConfig(xlstm.mLSTMLayerConfig()),
            slstm_block=xlstm.sLSTMBlockConfig(slstm, xlstm.FeedForwardConfig()),
            slstm_at=slstm_at,
            num_blocks=num_blocks,
            context_length=T,
            embedding_dim=WIDTH,
            vocab_size=VOCABULARY,
        )
    ).double()
    normal = draw(1)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * normal(*p.shape)
    return model


def renamed(theirs) -> dict[str, Tensor]:
    """Their weights under our names; they keep the distance of a norm's gain from 1."""
    out = {
        "embedding.weight": theirs.token_embedding.weight,
        "norm.weight": 1 + theirs.xlstm_block_stack.post_blocks_norm.weight,
        "head.weight": theirs.lm_head.weight,
    }
    for i, block in enumerate(theirs.xlstm_block_stack.blocks):
        mlstm = isinstance(block, xlstm.mLSTMBlock)
        mixer = (xlstm_mlstm if mlstm else xlstm_slstm)(block.xlstm.state_dict())
        out |= prefixed(f"blocks.{i}.mixer.", mixer)
        out[f"blocks.{i}.mixer_norm.weight"] = 1 + block.xlstm_norm.weight
        if not mlstm:
            out[f"blocks.{i}.mlp_norm.weight"] = 1 + block.ffn_norm.weight
            out[f"blocks.{i}.mlp.gate_up.weight"] = block.ffn.proj_up.weight
            out[f"blocks.{i}.mlp.down.weight"] = block.ffn.proj_down.weight
    return out


@pytest.mark.parametrize(
    ("mixers", "slstm_at"),
    [
        ((MLSTMConfig(), SLSTMConfig()), [1]),
        ((SLSTMConfig(), MLSTMConfig()), [0]),
        ((*[MLSTMConfig()] * 7, SLSTMConfig()), [7]),
    ],
    ids=["1:1", "slstm-first", "7:1"],
)
def test_logits(mixers, slstm_at):
    """Only blocks with sLSTM have an MLP."""
    theirs = make_theirs(len(mixers), slstm_at)
    ours = SequenceModel(
        ModelConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_layers=len(mixers),
            mixer=mixers,
            norm="layer",
            norm_eps=1e-5,
            mlp="gated_gelu",
            mlp_after=("slstm",),
        )
    ).double()
    assert ours.num_parameters() == sum(p.numel() for p in theirs.parameters())
    ours.load_state_dict(renamed(theirs))
    x = torch.randint(VOCABULARY, (2, T), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert_close(ours(x)[0], theirs(x), 1e-4)  # their mLSTM adds 1e-6 to its normaliser
