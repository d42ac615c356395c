"""sLSTM: an LSTM with exponential gates, a normaliser, and memory mixing within heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from statetrack.config import at_least, one_of, option
from statetrack.errors import UserError
from statetrack.layers.base import NOT_LINEAR, Mixer, MixerConfig, register
from statetrack.layers.common import HeadNorm, ShortConv, first_window, small_init_
from statetrack.layers.operations import TensorOps
from statetrack.ops import slstm

FORGET = 1  # index of f in the gates i, f, z, o


@dataclass(frozen=True)
class SLSTMConfig(MixerConfig):
    """Options of sLSTM."""

    name: ClassVar[str] = "slstm"
    label: ClassVar[str] = "sLSTM"
    no_switch: ClassVar[str] = (
        "its recurrence is not linear (h enters the gates), so there is no A(x) whose eigenvalues "
        "could be widened, and it tracks state as it is"
    )
    about: ClassVar[str] = "no linear RNN: h enters exponential gates through a matrix per head"

    num_heads: int = option(4, "heads, each with its own recurrent matrices")
    conv_size: int = option(
        4, "width of the causal convolution, with SiLU, for i and f; 0 for neither"
    )
    gate_init: Literal["xlstm", "standard"] = option(
        "xlstm", "gate biases at first: f from 5 to -7 and others 0, or all within hidden size^-1/2"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_heads", self.num_heads, 1)
        at_least("conv_size", self.conv_size, 0)
        one_of("gate_init", self.gate_init, ("xlstm", "standard"))

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(num_heads=3),
            cls(num_heads=2, conv_size=0, gate_init="standard"),
            cls(num_heads=1, conv_size=1),
        ]


class SLSTMState(NamedTuple):
    """State of sLSTM; the first four are the state of `ops.slstm`."""

    h: Tensor  # [B, H, D]
    c: Tensor  # [B, H, D]
    n: Tensor  # [B, H, D]
    m: Tensor  # [B, H, D]
    conv: Tensor  # [B, conv_size - 1, hidden_size]: the last inputs of the convolution


@register
class SLSTM(Mixer):
    """The scalar memory of xLSTM; residual and feed-forward layer are the model's.

        (i, f, z, o)_t = W x_t + R h_{t-1} + bias,
        c_t = sigmoid(f) c_{t-1} + exp(i) tanh(z),   n_t = sigmoid(f) n_{t-1} + exp(i),
        h_t = sigmoid(o) c_t / n_t,   y_t = norm(h_t).

    W and R are block-diagonal: each head sees its own part of x and of h. For i and f, x goes
    through a short causal convolution and SiLU first. `norm` is by head. Options: see SLSTMConfig.
    """

    config_class = SLSTMConfig
    config: SLSTMConfig
    unsupported = NOT_LINEAR
    no_weight_decay = ("bias",)

    def __init__(self, hidden_size: int, config: SLSTMConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        c = self.config
        if hidden_size % c.num_heads:
            got = f"{c.num_heads} heads for {hidden_size}"
            raise UserError(f"num_heads must divide hidden_size; got {got}")
        self.head_size = size = hidden_size // c.num_heads
        self.conv = ShortConv(hidden_size, c.conv_size, bias=True) if c.conv_size else None
        self.W = nn.Parameter(torch.empty(c.num_heads, 4, size, size))  # [head, gate, out, in]
        self.R = nn.Parameter(torch.zeros(c.num_heads, 4, size, size))
        self.bias = nn.Parameter(torch.zeros(c.num_heads, 4, size))
        self.norm = HeadNorm(c.num_heads, size)
        small_init_(self.W, hidden_size)
        if c.gate_init == "standard":
            nn.init.uniform_(self.bias, -(hidden_size**-0.5), hidden_size**-0.5)
        self.init_at_depth(0, 1)

    @torch.no_grad()
    def init_at_depth(self, layer: int, num_layers: int) -> None:
        """xLSTM's forget biases fall from 5 to -7, in the first layer fast and then slowly."""
        if self.config.gate_init == "xlstm":
            depth = layer / (num_layers - 1) if num_layers > 1 else 0.0
            place = torch.linspace(0, 1, self.head_size)
            self.bias[:, FORGET] = 5 - 12 * place ** (0.3 + 1.3 * depth)

    def init_state(self, batch: int) -> SLSTMState:
        zero = self.zeros(batch, self.config.num_heads, self.head_size)
        conv = first_window(self.conv, zero, self.hidden_size)
        return SLSTMState(zero, zero, zero, zero, conv)

    def mix(self, x: Tensor, state: SLSTMState, ops: TensorOps) -> tuple[Tensor, SLSTMState]:
        window = state.conv
        if self.conv:
            (smooth,), window = ops.short_conv(x, self.conv, window)
            gates = torch.cat([self._gates(smooth, 0, 2), self._gates(x, 2, 4)], 3)
        else:
            gates = self._gates(x, 0, 4)
        h, memory = slstm(
            gates + self.bias,
            self.R,
            initial_state=state[:4],
            output_final_state=True,
            mask=ops.mask,
            backend=ops.backend,
        )
        assert memory is not None
        # the gates are a matrix product, which autocast may have made bfloat16; the bias was not
        return self.norm(h).flatten(-2).to(gates.dtype), SLSTMState(*memory, window)

    def _gates(self, x: Tensor, first: int, last: int) -> Tensor:
        """W x for some of the gates i, f, z, o: [B, T, H, last - first, D]."""
        heads = x.unflatten(-1, (self.config.num_heads, -1))
        return torch.einsum("bthi,hgoi->bthgo", heads, self.W[:, first:last])

    def transitions(self, x: Tensor) -> None:
        """Return None: sLSTM is not a linear RNN."""
