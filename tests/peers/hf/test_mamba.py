"""Mamba: the states of transformers' models, and mamba.py's layers, with their weights in ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mambapy.mamba import Mamba as TheirMamba
from mambapy.mamba import MambaConfig as TheirConfig
from mambapy.mamba import ResidualBlock

from statetrack import Mamba
from statetrack.layers.common import RMSNorm
from statetrack.models.convert import convert
from statetrack.models.convert.mamba import mamba_mixer
from tests.ops.common import assert_all_close, assert_close
from tests.peers.common import SINGLE
from tests.peers.hf import models


@torch.no_grad()
def test_states_of_transformers() -> None:
    theirs, x = models.mamba(), models.tokens(2, 12)
    ours = convert(theirs.config.to_dict(), theirs.state_dict())
    seen = theirs(x[:, :7], use_cache=True)
    _, state = ours(x[:, :7])
    for t in range(7, 12):
        seen = theirs(x[:, t : t + 1], cache_params=seen.cache_params, use_cache=True)
        logits, state = ours.step(x[:, t], state)
        assert_close(logits, seen.logits[:, 0], SINGLE)
    for layer, mine in enumerate(state):
        assert_close(mine.h, seen.cache_params.layers[layer].recurrent_states[0], SINGLE)


WIDTH, CHANNELS = 12, 24


def pairs(pscan: bool) -> tuple[TheirMamba, list[tuple[RMSNorm, Mamba]]]:
    """A model of mamba.py, which is layers only, and our norm and mixer for each of its layers."""
    torch.manual_seed(0)
    config = TheirConfig(d_model=WIDTH, n_layers=2, d_state=4, pscan=pscan)
    theirs = TheirMamba(config)
    layers = []
    for block in theirs.layers:
        assert isinstance(block, ResidualBlock)
        torch.nn.init.normal_(block.norm.weight, 1.0, 0.3)
        mixer = Mamba(WIDTH, d_state=4)
        mixer.load_state_dict(mamba_mixer(block.mixer.state_dict()))
        norm = RMSNorm(WIDTH, config.rms_norm_eps)
        norm.load_state_dict(block.norm.state_dict())
        layers.append((norm, mixer))
    return theirs, layers


@pytest.mark.parametrize("pscan", [True, False], ids=["scan", "loop"])
def test_layers_of_mamba_py(pscan: bool) -> None:
    theirs, layers = pairs(pscan)
    x = torch.randn(2, 33, WIDTH)
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = mine
    for norm, mixer in layers:
        y = y + mixer(norm(y))[0]
    expected = theirs(other)
    assert_close(y, expected, SINGLE)
    weight = torch.randn(y.shape)
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    assert mine.grad is not None
    assert other.grad is not None
    assert_close(mine.grad, other.grad, SINGLE)
    for block, (norm, mixer) in zip(theirs.layers, layers, strict=True):
        assert_close(norm.weight.grad, block.norm.weight.grad, SINGLE)  # type: ignore[arg-type]
        grads = {name: p.grad for name, p in block.mixer.named_parameters()}
        expected_grads = mamba_mixer(grads)
        found = {name: p.grad for name, p in mixer.named_parameters()}
        assert_all_close(found, expected_grads, SINGLE)  # type: ignore[arg-type]


@torch.no_grad()
def test_steps_of_mamba_py() -> None:
    theirs, layers = pairs(True)
    x = torch.randn(2, 9, WIDTH)
    caches: list[Any] = [(None, torch.zeros(2, CHANNELS, 3)) for _ in layers]
    states = [mixer.init_state(2) for _, mixer in layers]
    for x_t in x.unbind(1):
        expected, caches = theirs.step(x_t, caches)
        y = x_t
        for i, (norm, mixer) in enumerate(layers):
            out, states[i] = mixer.step(norm(y), states[i])
            y = y + out
        assert_close(y, expected, SINGLE)
    for state, (h, window) in zip(states, caches, strict=True):
        assert_close(state.h, h, SINGLE)
        assert_close(state.conv, window.mT, SINGLE)
