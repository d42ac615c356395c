"""A layer of DeltaNet and its kin without any memory, whatever its inputs are."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.hardening.heads import LONG, layer_of
from statetrack.hardening.outputs import say
from statetrack.hardening.tokens import NO_STEP, TINY, Seen
from statetrack.layers import GatedDeltaNet
from statetrack.models import SequenceModel


@torch.no_grad()
def write_idle(model: SequenceModel, seen: Seen, out: Tensor) -> SequenceModel:
    """The model whose every input overwrites what the one before it wrote, to say `out` if it can.

    With beta = 1 and the same key wherever something is written and asked for, a head's output is
    its value, for inputs that were never seen as well. Where SiLU acts on keys, it takes one for
    inputs on either side; with keys of one number those on one side say nothing.
    """
    made = copy.deepcopy(model)
    layer = layer_of(made, seen)
    q_rows, k_rows, _ = layer.qkv_proj.weight.split(layer.sizes)
    side = _one_side(seen.x)
    side *= LONG / (seen.x @ side).abs().min().clamp(min=TINY)
    for rows in (q_rows, k_rows):
        rows.zero_()
        rows[:: layer.key_size] = side
        if layer.qk_silu and layer.key_size > 1:  # which leaves nothing of negative numbers
            rows[1 :: layer.key_size] = -side
    layer.beta.proj.weight.zero_()
    if isinstance(layer, GatedDeltaNet):
        layer.a_proj.weight.zero_()
        layer.dt_bias.fill_(NO_STEP)
    say(made, seen, out)
    return made


def _one_side(inputs: Tensor) -> Tensor:
    """A vector [D] that has a positive product with inputs [n, D], with all if that can be."""
    units = F.normalize(inputs, dim=1)
    w = units.mean(0) + TINY * units[0]  # the mean may be 0
    for _ in range(1000):  # a perceptron
        wrong = units @ w <= 1e-3 * w.norm()
        if not wrong.any():
            break
        w = w + units[wrong].mean(0)
    return w / w.norm()
