"""The layers under test, from the registry, with small sizes; inputs and states for them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statetrack.layers import MIXERS, AttentionState, Mixer, MixerConfig
from statetrack.layers.base import VARIANT_SIZE as HIDDEN
from statetrack.testing.case import Case
from statetrack.testing.case import row as row_of_state
from statetrack.testing.case import step_through as steps
from statetrack.testing.inputs import draw
from tests.ops.common import assert_close

LAYERS = [
    pytest.param(variant, id=variant.description)
    for config in MIXERS.values()
    for variant in config.variants()
]


def make_layer(config: MixerConfig, hidden_size: int = HIDDEN, seed: int = 0) -> Mixer:
    """The layer in float64 with no parameter left at a special value such as 0 or 1."""
    torch.manual_seed(seed)
    return Case(lambda: config.build(hidden_size)).build(seed)


# those with a transition A(x)
LINEAR = [
    p for p in LAYERS if make_layer(p.values[0]).transitions(torch.zeros(1, 1, HIDDEN).double())
]


@torch.no_grad()
def make_state(layer: Mixer, batch: int, seed: int = 7):
    """The state after four tokens, in the type of the weights."""
    dtype = next(layer.parameters()).dtype
    _, state = layer(inputs(batch, 4, layer.hidden_size, seed).to(dtype))
    return state


def linear_state(state) -> Tensor:
    """The part of a state that the transitions act on, at its true scale."""
    return state[0] * state.m.exp()[..., None, None] if hasattr(state, "m") else state[0]


def tidy(state):
    """The same state without slack: a cache cut to its longest row, and 0 past a row's end."""
    if not isinstance(state, AttentionState):
        return state
    longest = int(state.length.max())
    there = (torch.arange(longest) < state.length[:, None])[..., None, None]
    k, v = (part[:, :longest].where(there, 0.0) for part in state[:2])
    return AttentionState(k, v, state.length)


def inputs(batch: int, length: int, hidden_size: int = HIDDEN, seed: int = 3) -> Tensor:
    """[batch, length, hidden_size]."""
    return draw(seed)(batch, length, hidden_size)


def row(state, n: int):
    """The state of one row of the batch, as a batch of 1."""
    return tidy(row_of_state(state, n))


def step_through(layer: Mixer, x: Tensor, state):
    """x token by token; the outputs [B, T, ...] and the last state."""
    y, states = steps(layer, x, state)
    return y, states[-1]


def assert_same_state(actual, expected, tolerance: float = 1e-11) -> None:
    assert type(actual) is type(expected)
    for name, a, b in zip(expected._fields, tidy(actual), tidy(expected), strict=True):
        assert_close(a, b, tolerance, f"state.{name}")
