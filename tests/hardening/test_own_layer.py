"""A layer from elsewhere is hardened by the methods that it defines, and by no others."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import pytest
import torch
from torch import Tensor, nn

from statetrack.errors import UserError
from statetrack.hardening import harden
from statetrack.layers import Diagonal, Mixer, MixerConfig
from statetrack.layers.inverse import SATURATED, refit, saturate
from statetrack.models import ModelConfig, SequenceModel
from tests.hardening.test_harden import BATCH, PARITY, accuracy


@dataclass(frozen=True)
class SignConfig(MixerConfig):
    name: ClassVar[str] = "sign"
    label: ClassVar[str] = "Sign"
    about: ClassVar[str] = "A(x) = tanh(W x)"

    def build(self, hidden_size: int) -> Mixer:
        return Sign(hidden_size, self)


class SignState(NamedTuple):
    h: Tensor  # [B, D]


class Sign(Mixer):
    """h_t = tanh(W x_t) h_{t-1} + U x_t,  y_t = h_t."""

    config_class = SignConfig

    def __init__(self, hidden_size: int, config: SignConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        self.W = nn.Linear(hidden_size, hidden_size, bias=False)
        self.U = nn.Linear(hidden_size, hidden_size, bias=False)

    def init_state(self, batch: int) -> SignState:
        return SignState(self.zeros(batch, self.hidden_size))

    def mix(self, x: Tensor, state: SignState, *_: Any) -> tuple[Tensor, SignState]:
        h, out = state.h.to(x), []
        for a, b in zip(torch.tanh(self.W(x)).unbind(1), self.U(x).unbind(1), strict=True):
            h = a * h + b
            out.append(h)
        return torch.stack(out, 1), SignState(h)

    def transitions(self, x: Tensor) -> Diagonal:
        return Diagonal(torch.tanh(self.W(x)), bounds=(-1.0, 1.0))

    def hardening_obstacle(self) -> str | None:
        return None

    @torch.no_grad()
    def memoryless(self, x: Tensor) -> Self:
        made = copy.deepcopy(self)
        made.W.weight.zero_()
        return made

    @torch.no_grad()
    def with_gates(self, x: Tensor, gates: Tensor, silent: Tensor) -> Self:
        made, gates = copy.deepcopy(self), gates[..., 0]
        made.W.weight.copy_(refit(self.W.weight, x, saturate(self.W(x), gates, SATURATED, 0.0)))
        writes = self.U(x).masked_fill((gates == 1) | silent, 0.0)
        made.U.weight.copy_(refit(self.U.weight, x, writes))
        return made


@torch.no_grad()
def noisy_parity() -> SequenceModel:
    config = ModelConfig(
        vocab_size=3, hidden_size=4, num_layers=1, mixer=SignConfig(), embedding="one_hot",
        norm="none", residual=False, mlp="none", final_norm=False, head_bias=True,
    )  # fmt: skip
    model = SequenceModel(config)
    for p in model.parameters():
        p.zero_()
    layer = model.blocks[0].mixer
    layer.W.weight[0, 1:3] = torch.tensor([3.0, -3.0])  # tanh: 0.995
    layer.U.weight[0, 2] = 1.0
    model.head.weight[2, 0] = 8.0
    model.head.bias[:] = torch.tensor([-9.0, 4.0, 0.0])
    return model.eval()


def test_a_layer_that_defines_how_it_is_hardened() -> None:
    model = noisy_parity()
    result = harden(model, BATCH)
    assert result.changed, result
    assert accuracy(model, 5000) < 0.9
    assert accuracy(result.model, 5000) == 1.0
    assert result.automaton(PARITY.vocab).states == 2


def test_a_layer_that_does_not() -> None:
    model = noisy_parity()
    layer = model.blocks[0].mixer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sign, "with_gates", Mixer.with_gates)
        with pytest.raises(UserError, match="Sign cannot be hardened: it does not define with_g"):
            harden(model, BATCH)
        patch.setattr(Sign, "hardening_obstacle", Mixer.hardening_obstacle)
        with pytest.raises(UserError, match="cannot be hardened: Sign does not define how"):
            harden(model, BATCH)
    with pytest.raises(UserError, match="it does not define head_outputs"):
        layer.head_outputs(torch.zeros(1, 1, 4))
    with pytest.raises(UserError, match="Sign does not define op_inputs; only linear RNNs"):
        layer.op_inputs(torch.zeros(1, 1, 4))
