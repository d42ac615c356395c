"""The names and shapes of xlstm's mLSTM, taken into ours; tests/peers compares the numbers."""

from __future__ import annotations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import MLSTM
from statetrack.models.convert.xlstm import xlstm_mlstm


def theirs() -> dict[str, torch.Tensor]:
    """A state dict of mLSTMLayer at embedding_dim 32."""
    gates = {
        f"mlstm_cell.{gate}gate.{part}": torch.full(shape, fill)
        for gate, fill in (("i", 1.0), ("f", 2.0))
        for part, shape in (("weight", (4, 192)), ("bias", (4,)))
    }
    return {
        "learnable_skip": torch.randn(64),
        "proj_up.weight": torch.randn(128, 32),
        **{f"{name}_proj.weight": torch.randn(16, 4, 4) for name in "qkv"},
        "conv1d.conv.weight": torch.randn(64, 1, 4),
        "conv1d.conv.bias": torch.randn(64),
        **gates,
        "mlstm_cell.outnorm.weight": torch.zeros(64),
        "proj_down.weight": torch.randn(32, 64),
    }


def test_every_weight_finds_its_place():
    layer, state = MLSTM(32), theirs()
    layer.load_state_dict(xlstm_mlstm(state))
    assert sum(p.numel() for p in layer.parameters()) == sum(w.numel() for w in state.values())
    assert layer.gates.bias.tolist() == [1.0] * 4 + [2.0] * 4
    assert torch.equal(layer.norm.weight, torch.ones(64))
    assert torch.equal(layer.conv.weight, state["conv1d.conv.weight"][:, 0])


def test_other_weights():
    state = theirs()
    state["proj_up.bias"] = torch.zeros(128)
    with pytest.raises(UserError, match=r"tensors without a place here: proj_up\.bias$"):
        xlstm_mlstm(state)
    del state["learnable_skip"]
    with pytest.raises(UserError, match=r"the checkpoint has no tensor learnable_skip$"):
        xlstm_mlstm(state)
