"""mLSTM and sLSTM layers of the package xlstm."""

from __future__ import annotations

import torch

from statetrack.models.convert.checkpoint import Tensors
from statetrack.models.convert.weights import State, Weights, convolution, renamed

MLSTM = {
    "skip": "learnable_skip",
    "up_proj.weight": "proj_up.weight",
    "q_proj.weight": "q_proj.weight",
    "k_proj.weight": "k_proj.weight",
    "v_proj.weight": "v_proj.weight",
    "down_proj.weight": "proj_down.weight",
}
"""Our names and theirs."""


def xlstm_mlstm(state: State) -> Weights:
    """Convert the state dict of an `xlstm.mLSTMLayer` without biases to that of our `MLSTM`."""
    tensors = Tensors(state)
    gates = [tensors.under(f"mlstm_cell.{gate}gate.") for gate in "if"]
    weights = renamed(tensors, MLSTM) | convolution(tensors, "conv1d.conv")
    weights |= {f"gates.{p}": torch.cat([g[p] for g in gates]) for p in ("weight", "bias")}
    weights["norm.weight"] = 1 + tensors["mlstm_cell.outnorm.weight"]  # they store gain - 1
    tensors.finish()
    return weights


def xlstm_slstm(state: State) -> Weights:
    """Convert the state dict of an `xlstm.sLSTMLayer` to that of our `SLSTM`.

    The backends "vanilla" and "cuda" order recurrent weights and biases differently; both are read.
    """
    tensors = Tensors(state)
    R, bias = tensors["slstm_cell._recurrent_kernel_"], tensors["slstm_cell._bias_"]
    heads, size = R.shape[0], min(R.shape[1:])
    if R.shape[1] > R.shape[2]:  # vanilla: R [H, 4 D, D], out before in; biases by gate, head
        R = R.reshape(heads, 4, size, size)
        bias = bias.reshape(4, heads, size).transpose(0, 1)
    else:  # cuda: R [H, D, 4 D], in before out; biases by head, gate
        R = R.reshape(heads, size, 4, size).permute(0, 2, 3, 1)
        bias = bias.reshape(heads, 4, size)
    weights = {
        # i, f, z and o: the weights named fgate there make i, and those named igate f
        "W": torch.stack([tensors[f"{name}gate.weight"] for name in "fizo"], 1),
        "R": R.contiguous(),
        "bias": bias.contiguous(),
        "norm.weight": 1 + tensors["group_norm.weight"],  # they store gain - 1
    }
    if "conv1d.conv.weight" in tensors:
        weights |= convolution(tensors, "conv1d.conv")
    tensors.finish()
    return weights
