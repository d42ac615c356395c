"""Layers from outside the package are diagnosed through `transitions` alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from statetrack.diagnosis import Kind, diagnose
from statetrack.diagnosis.horizon import predict_horizon
from statetrack.diagnosis.segments import NotPredictableError, Probe
from statetrack.layers import Dense, Guarantee, Mixer, MixerConfig
from statetrack.models import SequenceModel
from statetrack.training import RunConfig
from tests.training.small import small_config

SIZE = 3


@dataclass(frozen=True)
class OuterConfig(MixerConfig):
    name = "outer"
    label = "Outer"
    about = "h_t = A(x_t) h_{t-1} + B x_t with dense matrices, without heads"
    no_switch = "its A(x) may have any real eigenvalues"


class State(NamedTuple):
    h: Tensor


class Outer(Mixer):
    config_class = OuterConfig

    def __init__(self, hidden_size: int, config: OuterConfig | None = None) -> None:
        super().__init__(hidden_size, config)
        self.vector = nn.Linear(hidden_size, SIZE)
        self.write = nn.Linear(hidden_size, SIZE)
        self.read = nn.Linear(SIZE, hidden_size)

    def init_state(self, batch: int) -> State:
        return State(self.zeros(batch, SIZE))

    def transitions(self, x: Tensor) -> Dense:
        values = torch.diag_embed(torch.tanh(self.vector(x)))
        basis = torch.tensor([[1.0, 2, 0], [0, 1, 1], [1, 0, 1]]).to(x)  # shared by all A(x)
        A = basis @ values @ torch.linalg.inv(basis)
        return Dense(A, guarantee=Guarantee.REAL)

    def mix(self, x: Tensor, state: State, *_: Any) -> tuple[Tensor, State]:
        A, written = self.transitions(x).dense(), self.write(x)
        h = state.h.to(x.dtype)
        outputs = []
        for t in range(x.shape[1]):
            h = (A[:, t] @ h[..., None])[..., 0] + written[:, t]
            outputs.append(h)
        return self.read(torch.stack(outputs, 1)), State(h)


OuterConfig.layer = Outer


class Wide(Outer):
    """Its state begins with a tensor that the transitions cannot multiply."""

    def init_state(self, batch: int) -> State:
        return State(self.zeros(batch, SIZE + 1))

    def mix(self, x: Tensor, state: State, *_: Any) -> tuple[Tensor, State]:
        y, after = super().mix(x, State(state.h[:, :SIZE]))
        return y, State(torch.cat([after.h, state.h[:, SIZE:].to(x.dtype)], 1))


def plugin(config: MixerConfig) -> tuple[SequenceModel, RunConfig]:
    run = small_config("parity", "delta_net", max_length=12, model={"hidden_size": 8})
    run = replace(run, model=replace(run.model, mixer=config))
    torch.manual_seed(0)
    return SequenceModel(run.model).eval(), run


@torch.no_grad()
def test_joined_segments_are_what_the_model_does() -> None:
    model, run = plugin(OuterConfig())
    probe = Probe.of(model, run)
    assert probe.memory[0][0].shape[1:] == (1, SIZE, 1)  # one head
    P, C = probe.segments.maps[0]
    one, two = probe.cuts
    _, state = model(torch.from_numpy(probe.tokens[:, :two]))
    memory = P.apply(probe.memory[0][0]) + C
    torch.testing.assert_close(memory.flatten(1), state[0].h.double(), rtol=1e-4, atol=1e-4)
    joined = probe.segments.then(probe.segments, np.random.default_rng(0))
    assert joined.tokens == 2 * (two - one)
    assert 0 <= probe.accuracy(joined, np.random.default_rng(0), [(0, 0)]) <= 1
    assert not predict_horizon(model, run).learned


def test_declared_guarantees_give_architectural_verdicts() -> None:
    model, _ = plugin(OuterConfig())
    found = diagnose(model, "1")
    assert [layer.guarantee for layer in found.layers] == [Guarantee.REAL]
    assert found.architectural.factor == 2
    assert found.verdict(3).kind is Kind.ARCHITECTURAL
    assert diagnose(model, "12").architectural.factor == 2  # it holds for products, too


def test_a_state_that_does_not_fit_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OuterConfig, "layer", Wide)
    with pytest.raises(NotPredictableError, match=r"state of Outer begins with a tensor of \[4\]"):
        predict_horizon(*plugin(OuterConfig()))
