"""sLSTM of the package xlstm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from statetrack.errors import UserError

# i, f, z and o: there the weights named fgate make i, and those named igate f
_GATES = [f"{name}gate.weight" for name in "fizo"]
_CELL = ["slstm_cell._recurrent_kernel_", "slstm_cell._bias_"]
_NORM = "group_norm.weight"
_CONV = ["conv1d.conv.weight", "conv1d.conv.bias"]


def xlstm_slstm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of an `xlstm.sLSTMLayer` as that of our `SLSTM`.

    With the backend "vanilla" or "cuda": each has its own order of recurrent weights and biases.
    """
    known = {*_GATES, *_CELL, _NORM}
    missing, extra = known - state.keys(), state.keys() - known
    if missing or extra not in (set(), set(_CONV)):
        raise UserError(
            "not the weights of an xlstm sLSTM layer: "
            f"missing {', '.join(sorted(missing)) or 'nothing'}; "
            f"unknown {', '.join(sorted(extra - set(_CONV))) or 'nothing'}"
        )
    R, bias = (state[name] for name in _CELL)
    heads, size = R.shape[0], min(R.shape[1:])
    if R.shape[1] > R.shape[2]:  # vanilla: [H, 4 D, D], out before in; biases by gate, then by head
        R = R.reshape(heads, 4, size, size)
        bias = bias.reshape(4, heads, size).transpose(0, 1)
    else:  # cuda: [H, D, 4 D], in before out; biases by head, then by gate
        R = R.reshape(heads, size, 4, size).permute(0, 2, 3, 1)
        bias = bias.reshape(heads, 4, size)
    converted = {
        "W": torch.stack([state[name] for name in _GATES], 1),
        "R": R.contiguous(),
        "bias": bias.contiguous(),
        "norm.weight": 1 + state[_NORM],  # they keep the gain's distance from 1
    }
    if extra:
        converted["conv.weight"] = state[_CONV[0]].squeeze(1)  # [D, 1, width]
        converted["conv.bias"] = state[_CONV[1]]
    return converted
