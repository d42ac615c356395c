"""The layers under test: every option that changes the path through the code, small sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.layers import (
    AttentionConfig,
    AttentionState,
    DeltaNetConfig,
    DeltaProductConfig,
    DiagonalRNNConfig,
    FullMatrixConfig,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
    Mamba2Config,
    MambaConfig,
    Mixer,
    MixerConfig,
    MLSTMConfig,
    SLSTMConfig,
    SLSTMState,
)
from statetrack.testing.inputs import draw
from tests.ops.common import assert_close

HIDDEN = 12

LAYERS = [
    pytest.param(config, id=name)
    for name, config in {
        "delta_net-[0,1]": DeltaNetConfig(num_heads=3),
        "delta_net-[-1,1]": DeltaNetConfig(allow_neg_eigval=True, num_heads=2),
        "delta_net-[-1,1]-conv0": DeltaNetConfig(
            allow_neg_eigval=True, num_heads=3, conv_size=0, expand_k=0.5, expand_v=2.0
        ),
        "delta_net-[0,1]-conv1-stretch": DeltaNetConfig(num_heads=1, conv_size=1, beta_stretch=0.3),
        "gla-[0,1]": GLAConfig(num_heads=3, gate_logit_normalizer=16.0),
        "gla-[-1,1]": GLAConfig(allow_neg_eigval=True, num_heads=2, gate_low_rank_dim=5),
        "gla-[-1,1]-conv4": GLAConfig(
            allow_neg_eigval=True, num_heads=3, conv_size=4, expand_k=1.0, expand_v=2.0
        ),
        "gated_delta_net-[0,1]": GatedDeltaNetConfig(num_heads=3),
        "gated_delta_net-[-1,1]-shared": GatedDeltaNetConfig(
            allow_neg_eigval=True, num_heads=2, num_v_heads=6, expand_v=1.0
        ),
        "gated_delta_net-[0,1]-gate-[-1,1]-conv0": GatedDeltaNetConfig(
            allow_neg_gate=True, num_heads=3, conv_size=0, output_gate=False
        ),
        "delta_product-[0,1]-n3": DeltaProductConfig(num_heads=3, num_householder=3),
        "delta_product-[-1,1]-conv0": DeltaProductConfig(
            allow_neg_eigval=True, num_heads=3, conv_size=0
        ),
        "gated_delta_product-[-1,1]-gate-[-1,1]": GatedDeltaProductConfig(
            allow_neg_eigval=True, allow_neg_gate=True, num_heads=1, num_v_heads=2, expand_k=0.5
        ),
        "mamba-[0,1]": MambaConfig(d_state=3),
        "mamba-[-1,1]": MambaConfig(allow_neg_eigval=True, d_state=16, dt_rank=2),
        "mamba-[-1,1]-conv0": MambaConfig(allow_neg_eigval=True, d_state=5, conv_size=0, expand=1),
        "mamba-[0,1]-conv2": MambaConfig(d_state=1, conv_size=2),
        "mlstm-[0,1]": MLSTMConfig(),
        "mlstm-[-1,1]": MLSTMConfig(allow_neg_eigval=True, num_heads=2, gate_init="standard"),
        "mlstm-[-1,1]-conv0": MLSTMConfig(
            allow_neg_eigval=True, num_heads=2, conv_size=0, expand=0.5, qkv_block_size=8
        ),
        "attention": AttentionConfig(num_heads=3),
        "attention-grouped": AttentionConfig(num_heads=6, num_kv_heads=2, rope_base=100.0),
        "attention-norm": AttentionConfig(num_heads=3, rope_base=None, qk_norm_eps=1e-5),
        "diagonal_rnn-[0,1]": DiagonalRNNConfig(),
        "diagonal_rnn-[-1,1]": DiagonalRNNConfig(allow_neg_eigval=True),
        "full_matrix": FullMatrixConfig(size=3),
        "mamba2-[0,1]": Mamba2Config(head_dim=8, d_state=5),
        "mamba2-[-1,1]-groups": Mamba2Config(
            allow_neg_eigval=True, head_dim=4, d_state=4, n_groups=3
        ),
        "mamba2-[-1,1]-conv0-limits": Mamba2Config(
            allow_neg_eigval=True,
            d_state=3,
            expand=1,
            head_dim=4,
            conv_size=0,
            dt_limit_min=0.05,
            dt_limit_max=0.5,
        ),
        "slstm": SLSTMConfig(num_heads=3),
        "slstm-conv0": SLSTMConfig(num_heads=2, conv_size=0, gate_init="standard"),
        "slstm-conv1": SLSTMConfig(num_heads=1, conv_size=1),
    }.items()
]


def make_layer(config: MixerConfig, hidden_size: int = HIDDEN, seed: int = 0) -> Mixer:
    """The layer in float64 with no parameter left at a special value such as 0 or 1."""
    torch.manual_seed(seed)
    layer = config.build(hidden_size).double()
    normal = draw(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.3 * normal(*p.shape)
    return layer


# those with a transition A(x)
LINEAR = [
    p for p in LAYERS if make_layer(p.values[0]).transitions(torch.zeros(1, 1, HIDDEN).double())
]


def make_state(layer: Mixer, batch: int, seed: int = 7):
    """A state full of numbers, as tokens leave it.

    A cache has rows of different lengths, from 0 on, and sLSTM's normaliser is positive.
    """
    normal = draw(seed)
    empty = layer.init_state(batch)
    if isinstance(empty, AttentionState):
        size, (_, _, *rest) = 4, empty.k.shape
        length = (torch.arange(batch) + size - 1) % (size + 1)
        return tidy(AttentionState(*(normal(batch, size, *rest) for _ in range(2)), length))
    state = type(empty)(*(normal(*part.shape) for part in empty))
    return state._replace(n=0.5 + state.n.abs()) if isinstance(state, SLSTMState) else state


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


def join(states):
    """The states of rows as one of a batch."""
    states = list(states)
    if isinstance(states[0], AttentionState):
        longest = max(s.k.shape[1] for s in states)
        states = [
            AttentionState(*(F.pad(p, (0, 0, 0, 0, 0, longest - p.shape[1])) for p in s[:2]), s[2])
            for s in states
        ]
    return type(states[0])(*(torch.cat(parts) for parts in zip(*states, strict=True)))


def inputs(batch: int, length: int, hidden_size: int = HIDDEN, seed: int = 3) -> Tensor:
    """[batch, length, hidden_size]."""
    return draw(seed)(batch, length, hidden_size)


def row(state, n: int):
    """The state of one row of the batch, as a batch of 1."""
    return tidy(type(state)(*(part[n : n + 1] for part in state)))


def step_through(layer: Mixer, x: Tensor, state):
    """x token by token; the outputs [B, T, ...] and the last state."""
    outputs = []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


def assert_same_state(actual, expected, tolerance: float = 1e-11) -> None:
    assert type(actual) is type(expected)
    for name, a, b in zip(expected._fields, tidy(actual), tidy(expected), strict=True):
        assert_close(a, b, tolerance, f"state.{name}")
