"""The names and shapes of xlstm's sLSTM, taken into ours; tests/peers compares the numbers."""

from __future__ import annotations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import SLSTM
from statetrack.models.convert.xlstm import xlstm_slstm

H, D = 2, 3


def theirs(*, conv: bool) -> dict[str, torch.Tensor]:
    """A state dict of sLSTMLayer at embedding_dim 6 with 2 heads, backend vanilla."""
    convolution = {
        "conv1d.conv.weight": torch.randn(H * D, 1, 4),
        "conv1d.conv.bias": torch.randn(H * D),
    }
    return {
        **{f"{gate}gate.weight": torch.randn(H, D, D) for gate in "fizo"},
        "slstm_cell._recurrent_kernel_": torch.randn(H, 4 * D, D),
        "slstm_cell._bias_": torch.randn(4 * H * D),
        "group_norm.weight": torch.zeros(H * D),
        **(convolution if conv else {}),
    }


@pytest.mark.parametrize("conv", [False, True], ids=["no-conv", "conv"])
def test_every_weight_finds_its_place(conv):
    layer, state = SLSTM(H * D, num_heads=H, conv_size=4 if conv else 0), theirs(conv=conv)
    layer.load_state_dict(xlstm_slstm(state))
    assert sum(p.numel() for p in layer.parameters()) == sum(w.numel() for w in state.values())
    # the gate that they call f is our i
    assert torch.equal(layer.W[:, 0], state["fgate.weight"])
    assert torch.equal(layer.W[:, 1], state["igate.weight"])
    assert torch.equal(layer.R[1, 2, 0], state["slstm_cell._recurrent_kernel_"][1, 2 * D])
    assert torch.equal(layer.bias[1, 2], state["slstm_cell._bias_"].view(4, H, D)[2, 1])
    assert torch.equal(layer.norm.weight, torch.ones(H * D))


def test_the_order_of_the_backend_cuda():
    state = theirs(conv=False)
    expected = xlstm_slstm(state)
    R, bias = expected["R"], expected["bias"]
    state["slstm_cell._recurrent_kernel_"] = R.permute(0, 3, 1, 2).reshape(H, D, 4 * D)
    state["slstm_cell._bias_"] = bias.flatten()
    got = xlstm_slstm(state)
    assert torch.equal(got["R"], R)
    assert torch.equal(got["bias"], bias)


def test_other_weights():
    state = theirs(conv=False)
    state["zgate.bias"] = torch.zeros(H * D)
    with pytest.raises(UserError, match=r"tensors without a place here: zgate\.bias$"):
        xlstm_slstm(state)
    del state["zgate.weight"]
    with pytest.raises(UserError, match=r"the checkpoint has no tensor zgate\.weight$"):
        xlstm_slstm(state)
