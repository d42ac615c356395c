"""The layers under test: every option that changes the path through the code, small sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statetrack.layers import DeltaNetConfig, MambaConfig, Mixer, MixerConfig, SLSTMConfig
from tests.ops.common import assert_close, draw

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
        "mamba-[0,1]": MambaConfig(d_state=3),
        "mamba-[-1,1]": MambaConfig(allow_neg_eigval=True, d_state=16, dt_rank=2),
        "mamba-[-1,1]-conv0": MambaConfig(allow_neg_eigval=True, d_state=5, conv_size=0, expand=1),
        "mamba-[0,1]-conv2": MambaConfig(d_state=1, conv_size=2),
        "slstm": SLSTMConfig(num_heads=3),
        "slstm-conv0": SLSTMConfig(num_heads=2, conv_size=0, gate_init="standard"),
        "slstm-conv1": SLSTMConfig(num_heads=1, conv_size=1),
    }.items()
]
LINEAR = [layer for layer in LAYERS if layer.values[0].name != "slstm"]


def make_layer(config: MixerConfig, hidden_size: int = HIDDEN, seed: int = 0) -> Mixer:
    """The layer in float64 with no parameter left at a special value such as 0 or 1."""
    torch.manual_seed(seed)
    layer = config.build(hidden_size).double()
    normal = draw(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.3 * normal(*p.shape)
    return layer


def make_state(layer: Mixer, batch: int, seed: int = 7):
    """A state full of numbers; normalisers are positive, as every token leaves them."""
    normal = draw(seed)
    parts = {name: normal(*part.shape) for name, part in layer.init_state(batch)._asdict().items()}
    if "n" in parts:
        parts["n"] = 0.5 + parts["n"].abs()
    return type(layer.init_state(1))(**parts)


def inputs(batch: int, length: int, hidden_size: int = HIDDEN, seed: int = 3) -> Tensor:
    """[batch, length, hidden_size]."""
    return draw(seed)(batch, length, hidden_size)


def row(state, n: int):
    """The state of one row of the batch, as a batch of 1."""
    return type(state)(*(part[n : n + 1] for part in state))


def step_through(layer: Mixer, x: Tensor, state):
    """x token by token; the outputs [B, T, ...] and the last state."""
    outputs = []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


def assert_same_state(actual, expected, tolerance: float = 1e-11) -> None:
    assert type(actual) is type(expected)
    for name, a, b in zip(expected._fields, actual, expected, strict=True):
        assert_close(a, b, tolerance, f"state.{name}")
