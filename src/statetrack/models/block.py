"""A block of a model: norm, mixer and residual, then an MLP if there is one."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.layers.common import RMSNorm
from statetrack.layers.decoder import Decoder
from statetrack.layers.operations import TENSORS, TensorOps, recordable
from statetrack.models.config import ModelConfig
from statetrack.models.experts import Experts


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) if there is an MLP.

    Or, with `norm_after`, x + norm(mixer(x)) and x + norm(mlp(x)).
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.residual = config.residual
        self.norm_after = config.mixer_of(layer).name in config.norm_after
        self.mixer_norm = make_norm(config)
        self.mixer = config.mixer_of(layer).build(config.hidden_size)
        self.mixer.init_at_depth(layer, config.num_layers)
        self.mlp: GatedMLP | Experts | None = None
        if config.has_mlp(layer):
            self.mlp_norm = make_norm(config)
            self.mlp = make_mlp(config, layer)

    def forward(self, x: Tensor, state: Any = None, **layout: Any) -> tuple[Tensor, Any]:
        """[B, T, hidden_size] -> the same."""
        y, state = self.mixer(self.mixer_input(x), state, **layout)
        return self.finish(x, y), state

    def step(self, x_t: Tensor, state: Any, mixer: Decoder | None = None) -> tuple[Tensor, Any]:
        """One token [B, hidden_size], with the mixer's decoder if there is one."""
        y, state = (mixer or self.mixer).step(self.mixer_input(x_t), state)
        return self.finish(x_t, y), state

    def decoder(self, batch_size: int) -> Decoder:
        """Record a step of the block, or of its mixer if the rest cannot be recorded."""
        whole = Decoder(self, batch_size)
        if whole.recorded:
            return whole
        return Decoder(self, batch_size, partial(self.step, mixer=self.mixer.decoder(batch_size)))

    @recordable
    def mix(self, x: Tensor, state: Any, ops: TensorOps) -> tuple[Tensor, Any]:
        """`forward` with the operations of `ops`, for the decoder."""
        y, state = ops.mix(self.mixer, self.mixer_input(x, ops), state)
        return self.finish(x, y, ops), state

    def init_state(self, batch: int) -> Any:
        """The state before the first token."""
        return self.mixer.init_state(batch)

    def check_state(self, state: Any, batch: int) -> Any:
        """Return the state, the first one for None; raise if it is not of this block and batch."""
        return self.mixer.check_state(state, batch)

    def mixer_input(self, x: Tensor, ops: TensorOps = TENSORS) -> Tensor:
        """Return the mixer's input for the residual stream x."""
        return x if self.norm_after else ops.call(self.mixer_norm, x)

    def finish(self, x: Tensor, y: Tensor, ops: TensorOps = TENSORS) -> Tensor:
        """Return the block's output for the residual stream x and the mixer's output y."""
        y = ops.call(self.mixer_norm, y) if self.norm_after else y
        x = ops.add(x, y) if self.residual else y
        if self.mlp is None:
            return x
        if self.norm_after:
            y = ops.call(self.mlp_norm, ops.call(self.mlp, x))
        else:
            y = ops.call(self.mlp, ops.call(self.mlp_norm, x))
        return ops.add(x, y) if self.residual else y


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)) with act SiLU (SwiGLU) or GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.mlp_size or _mlp_size(config)
        self.kind = config.mlp
        self.gate_up = nn.Linear(config.hidden_size, 2 * size, bias=False)
        self.down = nn.Linear(size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden_size] -> the same."""
        return self.formula(x, TENSORS)

    def formula(self, x: Tensor, ops: TensorOps) -> Tensor:
        """`forward` with the operations of `ops`."""
        y = ops.linear(x, self.gate_up)
        if self.kind == "swiglu":
            return ops.linear(ops.swiglu(y), self.down)
        gate, up = y.chunk(2, -1)
        return ops.linear(F.gelu(gate) * up, self.down)


def _mlp_size(config: ModelConfig) -> int:
    """The default width: 8/3 of the hidden size rounded up to 256s (fla), or 1.3 to 64s (xLSTM)."""
    ratio, multiple = (8 / 3, 256) if config.mlp == "swiglu" else (1.3, 64)
    return math.ceil(int(config.hidden_size * ratio) / multiple) * multiple


def make_mlp(config: ModelConfig, layer: int) -> GatedMLP | Experts:
    """Return the MLP of a layer that has one, or the experts in its place."""
    if config.experts is not None and config.has_experts(layer):
        return Experts(config.hidden_size, config.experts)
    return GatedMLP(config)


def make_norm(config: ModelConfig) -> nn.Module:
    """Return the norm that a configuration names; the identity for "none"."""
    if config.norm == "rms":
        return RMSNorm(config.hidden_size, config.norm_eps)
    if config.norm == "layer":
        return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)
    return nn.Identity()
