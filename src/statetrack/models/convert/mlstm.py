"""mLSTM of the package xlstm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from statetrack.errors import UserError

_SAME = {
    "learnable_skip": "skip",
    "proj_up.weight": "up_proj.weight",
    "q_proj.weight": "q_proj.weight",
    "k_proj.weight": "k_proj.weight",
    "v_proj.weight": "v_proj.weight",
    "conv1d.conv.bias": "conv.bias",
    "proj_down.weight": "down_proj.weight",
}
_GATES = "mlstm_cell.igate", "mlstm_cell.fgate"  # in the order of our one projection
_CONV, _NORM = "conv1d.conv.weight", "mlstm_cell.outnorm.weight"


def xlstm_mlstm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of an `xlstm.mLSTMLayer` as that of our `MLSTM`."""
    known = {*_SAME, _CONV, _NORM, *(f"{g}.{part}" for g in _GATES for part in ("weight", "bias"))}
    if state.keys() != known:
        missing, extra = sorted(known - state.keys()), sorted(state.keys() - known)
        raise UserError(
            f"not the weights of an xlstm mLSTM layer without biases: "
            f"missing {', '.join(missing) or 'nothing'}; unknown {', '.join(extra) or 'nothing'}"
        )
    return {
        **{ours: state[theirs] for theirs, ours in _SAME.items()},
        "conv.weight": state[_CONV].squeeze(1),  # [D, 1, width]
        "gates.weight": torch.cat([state[f"{gate}.weight"] for gate in _GATES]),
        "gates.bias": torch.cat([state[f"{gate}.bias"] for gate in _GATES]),
        "norm.weight": 1 + state[_NORM],  # they keep the gain's distance from 1
    }
