"""mLSTM: linear attention with a forget gate, an exponential input gate and a normaliser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from statetrack.config import at_least, one_of, option
from statetrack.errors import UserError
from statetrack.layers.base import Mixer, MixerConfig, register
from statetrack.layers.common import (
    HeadNorm,
    HeadwiseLinear,
    ShortConv,
    first_window,
    small_init_,
    wang_init_,
)
from statetrack.layers.operations import TENSORS, TensorOps, recordable
from statetrack.layers.transitions import Diagonal

MULTIPLE = 64  # the number of channels is rounded up to one of it


@dataclass(frozen=True)
class MLSTMConfig(MixerConfig):
    """Options of mLSTM."""

    name: ClassVar[str] = "mlstm"
    label: ClassVar[str] = "mLSTM"
    about: ClassVar[str] = "A(x) = f I, one forget gate per head; exponential input gates"

    num_heads: int = option(4, "heads, each with its own state")
    expand: float = option(2.0, "channels / hidden size, rounded up to a multiple of 64 channels")
    conv_size: int = option(
        4, "width of the causal convolution, with SiLU, for q and k; 0: SiLU without it"
    )
    qkv_block_size: int = option(4, "size of the blocks in the projections to q, k and v")
    gate_init: Literal["xlstm", "standard"] = option(
        "xlstm", "gate biases at first: i near 0 and f from 3 to 6, or all within hidden size^-1/2"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_heads", self.num_heads, 1)
        if not 0 < self.expand < math.inf:
            raise UserError(f"expand must be a positive number; got {self.expand}")
        at_least("conv_size", self.conv_size, 0)
        at_least("qkv_block_size", self.qkv_block_size, 1)
        one_of("gate_init", self.gate_init, ("xlstm", "standard"))

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(),
            cls(allow_neg_eigval=True, num_heads=2, gate_init="standard"),
            cls(allow_neg_eigval=True, num_heads=2, conv_size=0, expand=0.5, qkv_block_size=8),
        ]


class MLSTMInputs(NamedTuple):
    """What mLSTM feeds to its recurrence, and what its output is made of besides."""

    q: Tensor  # [B, T, H, K]
    k: Tensor  # [B, T, H, K]
    v: Tensor  # [B, T, H, K]
    gates: Tensor  # [B, T, 2 H]: log i, then f before its sigmoid
    c: Tensor  # [B, T, D]
    z: Tensor  # [B, T, D]
    window: Tensor  # [B, conv_size - 1, D]: the convolution's next window


class MLSTMState(NamedTuple):
    """The memory C and normaliser n of each head at the scale exp(m), and the window."""

    S: Tensor  # [B, H, K, K + 1]: C exp(-m), and n exp(-m) as its last column
    m: Tensor  # [B, H]: the logarithm of their scale, a constant to the gradient
    conv: Tensor  # [B, conv_size - 1, D]: the last inputs of the convolution


@register
class MLSTM(Mixer):
    """The matrix memory of xLSTM with all of its block around it.

        C_t = f_t C_{t-1} + i_t k_t v_t^T,   n_t = f_t n_{t-1} + i_t k_t,
        h_t = C_t^T q_t / max(|n_t^T q_t|, 1),   q scaled by 1 / sqrt(K),
        y_t = down((norm(h_t) + skip c_t) SiLU(z_t)).

    u and z are projections of x, c is u after a short causal convolution and SiLU. q and k are
    block-diagonal projections of c, v of u; the gates i = exp(.) and f = sigmoid(.) of q, k, v.
    With `allow_neg_eigval`, f = 2 sigmoid(.) - 1. `norm` is by head. Options: see MLSTMConfig.

    n^T q is a sum of terms of both signs in either range, since k^T q has both; negative gates
    only add signs of their own. Where the terms cancel, the 1 takes over: |h| <= |C^T q|.

    i may be beyond all numbers, so what is stored is C exp(-m) and n exp(-m) with m_t = max(m_{t-1}
    + log|f_t|, log i_t, 0). With that the gate f exp(m_{t-1} - m_t) lies in [-1, 1], the write
    i exp(-m) and the normaliser's floor exp(-m) in [0, 1]. h does not depend on m, so no gradient
    goes through it. Floors below 1e-6 count as that: h stays finite even if exp(-m) is 0.
    """

    config_class = MLSTMConfig
    config: MLSTMConfig
    affine_state = False  # S is stored without its scale exp(m)

    def __init__(self, hidden_size: int, config: MLSTMConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        c = self.config
        self.channels = math.ceil(c.expand * hidden_size / MULTIPLE) * MULTIPLE
        for name, size in (("num_heads", c.num_heads), ("qkv_block_size", c.qkv_block_size)):
            if self.channels % size:
                raise UserError(f"{name} must divide the {self.channels} channels; got {size}")
        self.head_size = self.channels // c.num_heads
        blocks = self.channels // c.qkv_block_size
        self.up_proj = nn.Linear(hidden_size, 2 * self.channels, bias=False)
        self.conv = ShortConv(self.channels, c.conv_size, bias=True) if c.conv_size else None
        self.q_proj = HeadwiseLinear(self.channels, blocks)
        self.k_proj = HeadwiseLinear(self.channels, blocks)
        self.v_proj = HeadwiseLinear(self.channels, blocks)
        self.gates = nn.Linear(3 * self.channels, 2 * c.num_heads)  # log i, then f before sigmoid
        self.norm = HeadNorm(c.num_heads, self.head_size)
        self.skip = nn.Parameter(torch.ones(self.channels))
        self.down_proj = nn.Linear(self.channels, hidden_size, bias=False)
        for proj in (self.up_proj, self.q_proj, self.k_proj, self.v_proj):
            small_init_(proj.weight, hidden_size)
        self._init_gates()
        self.init_at_depth(0, 1)

    @torch.no_grad()
    def _init_gates(self) -> None:
        self.gates.weight.zero_()
        if self.config.gate_init == "standard":
            bound = self.hidden_size**-0.5
            self.gates.bias.uniform_(-bound, bound)
            return
        i, f = self.gates.bias.chunk(2)
        i.normal_(std=0.1)
        f.copy_(torch.linspace(3, 6, self.config.num_heads))

    def init_at_depth(self, layer: int, num_layers: int) -> None:
        wang_init_(self.down_proj.weight, self.hidden_size, num_layers)

    def init_state(self, batch: int) -> MLSTMState:
        size = self.head_size
        S = self.zeros(batch, self.config.num_heads, size, size + 1)
        conv = first_window(self.conv, S, self.channels)
        return MLSTMState(S, S.new_zeros(S.shape[:2]), conv)

    def op_inputs(
        self, x: Tensor, state: MLSTMState | None = None, ops: TensorOps = TENSORS
    ) -> MLSTMInputs:
        """Return what the layer feeds to its recurrence for x [B, T, hidden_size].

        Without a state, x starts a sequence.
        """
        state = self.first_state(x) if state is None else state
        u, z = ops.split_linear(x, self.up_proj, [self.channels] * 2)
        (c,), window = ops.short_conv(u, self.conv, state.conv)
        qkv, parts = ops.concatenate(
            ops.linear(c, self.q_proj), ops.linear(c, self.k_proj), ops.linear(u, self.v_proj)
        )
        q, k, v = (ops.split_heads(part, self.config.num_heads) for part in parts)
        return MLSTMInputs(q, k, v, ops.linear(qkv, self.gates), c, z, window)

    @recordable
    def mix(self, x: Tensor, state: MLSTMState, ops: TensorOps) -> tuple[Tensor, MLSTMState]:
        q, k, v, gates, c, z, window = self.op_inputs(x, state, ops)
        signed = self.config.allow_neg_eigval
        h, S, m = ops.mlstm(q, k, v, gates, state.S, state.m, signed=signed)
        y = ops.mlstm_output(h, self.norm, self.skip, c, z)
        return ops.linear(y, self.down_proj), MLSTMState(S, m, window)

    def transitions(self, x: Tensor) -> Diagonal:
        _, f = self.op_inputs(x).gates.chunk(2, -1)
        gate = TENSORS.sigmoid_decay(f, signed=self.config.allow_neg_eigval).values()
        values = gate[..., None].expand(*gate.shape, self.head_size)
        return Diagonal(values, bounds=self.config.bounds)
