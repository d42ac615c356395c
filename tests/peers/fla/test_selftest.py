"""The layers that `statetrack selftest` times on GPUs: ours and fla's have the same sizes."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import pytest
import torch

from statetrack.layers import MIXERS
from statetrack.selftest.peers import FLA_LAYERS, fla_layer
from statetrack.selftest.speed import Size, _training
from tests.peers.fla.cpu import on_cpu as on_cpu

WIDTH, HEADS = 64, 2
REPLACED = ("delta_net", "gated_delta_net", "gated_delta_product", "gla")  # what `on_cpu` knows


@pytest.mark.parametrize("name", FLA_LAYERS)
def test_sizes(name):
    config = MIXERS[name]
    heads = {"num_heads": HEADS} if "num_heads" in {f.name for f in fields(config)} else {}
    ours = config(**heads).build(WIDTH)
    theirs = fla_layer(name, WIDTH, HEADS)
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in (ours, theirs)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.02)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", REPLACED)
def test_a_training_step_of_theirs(name):
    size = Size(2, 5, HEADS, 32, 64, WIDTH, (torch.float32,), rounds=1)
    call = _training(partial(fla_layer, name, WIDTH, HEADS), torch.device("cpu"), size)
    y, *gradients = call()
    assert y.shape == (2, 5, WIDTH)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
