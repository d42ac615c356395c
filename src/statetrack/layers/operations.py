"""The operations that layers are written in, on tensors [B, T, ...].

A layer writes its formula once, in `Mixer.mix`, with these operations. Given a `TensorOps` it
processes whole sequences; given a `StepRecorder`, which has the same methods, it records the
kernels of one token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.ops import (
    delta_product,
    gated_linear_attention,
    selective_scan,
    softplus,
    swiglu,
)
from statetrack.ops.l2_norm import l2_normalize
from statetrack.ops.linear_scan import linear_scan

if TYPE_CHECKING:
    from statetrack.layers.base import Mixer
    from statetrack.layers.common import GatedRMSNorm, HeadNorm, RMSNorm, ShortConv

M = TypeVar("M", bound=Callable[..., Any])

LEAST_NORMALISER = 1e-6  # of mLSTM, relative to the greatest term of its sum: less is rounding


def recordable(mix: M) -> M:
    """Decorator: declare that a `mix` computes with `ops` only, so that it can be recorded."""
    mix.recordable = True  # type: ignore[attr-defined]
    return mix


class Gate(NamedTuple):
    """The gate of a recurrence as ops take it: its logarithm `g`, or `decay` if it has a sign.

    The kernels derive finite gradients from the logarithm even where the gate underflows.
    """

    g: Tensor | None = None
    decay: Tensor | None = None

    @classmethod
    def from_log(cls, g: Tensor, signed: bool) -> Gate:
        """a = e^g in [0, 1], or 2 a - 1 in [-1, 1] if `signed`."""
        return cls(decay=2 * g.exp() - 1) if signed else cls(g)

    def values(self) -> Tensor:
        """The factor of the state."""
        if self.g is not None:
            return self.g.exp()
        assert self.decay is not None
        return self.decay

    def masked(self, mask: Tensor) -> Gate:
        """1 where mask [B, T] is False."""
        return Gate(
            None if self.g is None else masked(self.g, mask, 0.0),
            None if self.decay is None else masked(self.decay, mask, 1.0),
        )


class TensorOps:
    """Operations on a right-padded batch of sequences.

    Args:
        mask: [B, T], False for padding: the state passes it unchanged. None if there is none.
        backend: of the ops, see `statetrack.ops`.
    """

    def __init__(self, mask: Tensor | None = None, backend: str = "auto") -> None:
        self.mask = mask
        self.backend = backend

    def mix(self, layer: Mixer, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """A layer inside of the formula."""
        return layer.mix(x, state, self)

    def call(self, module: nn.Module, x: Tensor) -> Tensor:
        """A module that has a `formula(x, ops)`, or a norm of a block."""
        y: Tensor = module(x)
        return y

    def linear(self, x: Tensor, module: nn.Module) -> Tensor:
        """A linear or block-diagonal linear module, or a sequence of them."""
        y: Tensor = module(x)
        return y

    def split_linear(self, x: Tensor, module: nn.Module, sizes: Sequence[int]) -> Sequence[Tensor]:
        """The output of a linear module, split into parts [B, T, size]."""
        return self.linear(x, module).split(list(sizes), -1)

    def concatenate(self, *parts: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Parts of equal size as one tensor for `linear`, and again the parts."""
        whole = torch.cat(parts, -1)
        return whole, whole.chunk(len(parts), -1)

    def short_conv(
        self,
        x: Tensor,
        conv: ShortConv | None,
        window: Tensor,
        *,
        sizes: Sequence[int] | None = None,
        head_sizes: Sequence[int] | None = None,
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Convolution and SiLU, split into `sizes`; the next window. Without `conv`, SiLU only.

        Parts with a head size h > 0 are normalised to length 1 in groups of h channels.
        """
        if conv is None:
            return F.silu(x).split(list(sizes or x.shape[-1:]), -1), window
        parts, window = conv(
            x, window, self.mask, sizes=sizes, head_sizes=head_sizes, backend=self.backend
        )
        return parts, window

    def activate(self, x: Tensor, *, silu: bool = True, head_size: int = 0) -> Tensor:
        """SiLU, if wanted, then groups of `head_size` > 0 channels normalised to length 1."""
        x = F.silu(x) if silu else x
        return l2_normalize(x.unflatten(-1, (-1, head_size))).flatten(-2) if head_size else x

    def split_heads(self, x: Tensor, heads: int, repeat: int = 1, *, factors: int = 1) -> Tensor:
        """[B, T, factors heads size] -> [B, T factors, heads repeat, size], each head repeated."""
        x = self.split_factors(x, factors).unflatten(-1, (heads, -1))
        return x if repeat == 1 else x.repeat_interleave(repeat, 2)

    def split_factors(self, x: Tensor, factors: int) -> Tensor:
        """[B, T, factors D] -> [B, T factors, D]."""
        return x.unflatten(-1, (factors, -1)).flatten(1, 2)

    def sigmoid_gate(self, x: Tensor, high: float, *, stretch: float = 0.0) -> Tensor:
        """high sigmoid(x), in float32 or wider.

        With a stretch d > 0 it is high clip((1 + 2 d) sigmoid(x) - d, 0, 1), which has both ends.
        """
        s = torch.sigmoid(wide(x))
        if stretch:
            s = ((1 + 2 * stretch) * s - stretch).clamp(0, 1)
        return high * s

    def sigmoid_decay(self, x: Tensor, *, root: float = 1.0, signed: bool) -> Gate:
        """a = sigmoid(x)^(1 / root), or 2 a - 1 if signed, in float32 or wider."""
        x = wide(x)
        if signed and root == 1:
            return Gate(decay=torch.tanh(x / 2))  # the same in fewer passes
        # through the logarithm: the gradient of a power of sigmoid would be infinite at 0
        return Gate.from_log(F.logsigmoid(x) / root, signed)

    def step_sizes(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        log_rates: Tensor | None = None,
        *,
        least: float = 0.0,
        most: float | None = None,
        signed: bool = False,
    ) -> tuple[Tensor, Gate]:
        """delta = softplus(x + bias) between `least` and `most`, in float32 or wider, and a gate.

        The gate is a = exp(-exp(log_rates) delta), or 2 a - 1 if signed; empty without rates.
        """
        x = wide(x)
        delta = softplus(x if bias is None else x + bias, backend=self.backend)
        if least > 0 or most is not None:
            delta = delta.clamp(least, most)
        if log_rates is None:
            return delta, Gate()
        return delta, Gate.from_log(delta * self.rates(log_rates, delta), signed)

    def rates(self, log_rates: Tensor, delta: Tensor) -> Tensor:
        """A = -exp(log_rates), in the dtype of delta."""
        return -torch.exp(log_rates.to(delta.dtype))

    def scale_heads(self, x: Tensor, scale: Tensor, add: Tensor | None = None) -> Tensor:
        """scale x + add, for x and add [B, T, H, P] and scale [B, T, H] or [H]."""
        y = scale[..., None] * x
        return y if add is None else add + y

    def norm(self, x: Tensor, module: RMSNorm | GatedRMSNorm, gate: Tensor | None = None) -> Tensor:
        """Normalise the last dimension, with a gate of as many numbers for a `GatedRMSNorm`."""
        gates = () if gate is None else (gate.reshape(x.shape),)
        y: Tensor = module(x, *gates, backend=self.backend)
        return y

    def merge_heads(self, x: Tensor) -> Tensor:
        """[B, T, H, P] -> [B, T, H P]."""
        return x.flatten(2)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return x + y

    def swiglu(self, x: Tensor) -> Tensor:
        """SiLU of the first half of x [..., 2 D] times the second."""
        return swiglu(x, backend=self.backend)

    def cast(self, x: Tensor, like: Tensor) -> Tensor:
        """x in the dtype of `like`."""
        return x.to(like.dtype)

    def recurrence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor | None,
        gate: Gate | None,
        state: Tensor,
        *,
        factors: int = 1,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`ops.delta_product`, or `ops.gated_linear_attention` if beta is None: o, the state."""
        gate = gate or Gate()
        if self.mask is not None:
            gate = gate.masked(self.mask)
            if beta is None:
                k = masked(k, self.mask, 0.0)
            else:
                beta = masked(beta, self.mask.repeat_interleave(factors, 1), 0.0)
        options: dict[str, Any] = {
            "g": gate.g,
            "decay": gate.decay,
            "scale": scale,
            "initial_state": state,
            "output_final_state": True,
            "backend": self.backend,
        }
        if beta is None:
            o, after = gated_linear_attention(q, k, v, **options)
        else:
            o, after = delta_product(q, k, v, beta, num_householder=factors, **options)
        assert after is not None
        return o, after

    def selective_scan(
        self,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        z: Tensor,
        state: Tensor,
        *,
        signed: bool,
    ) -> tuple[Tensor, Tensor]:
        """`ops.selective_scan`: y and the next state."""
        y, after = selective_scan(
            u,
            delta if self.mask is None else masked(delta, self.mask, 0.0),
            A,
            B,
            C,
            D,
            z,
            allow_neg_eigval=signed,
            initial_state=state,
            output_final_state=True,
            backend=self.backend,
        )
        assert after is not None
        return y, after

    def linear_scan(self, a: Tensor, b: Tensor, state: Tensor) -> Tensor:
        """`ops.linear_scan`: h_t = a_t h_{t-1} + b_t for a, b [B, T, D] and h_0 = state."""
        if self.mask is not None:
            a, b = masked(a, self.mask, 1.0), masked(b, self.mask, 0.0)
        return linear_scan(a, b, state.to(a.dtype), backend=self.backend)

    def mlstm(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gates: Tensor,
        state: Tensor,
        m: Tensor,
        *,
        signed: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """h [B, T, H, K] of mLSTM, and the next state and m; see `MLSTM` for the formula.

        gates [B, T, 2 H] are log i and then f before its sigmoid.
        """
        log_i, f = wide(gates).chunk(2, -1)
        gate = self.sigmoid_decay(f, signed=signed)
        least = log_i.detach().clamp(min=0)  # of m: i and the normaliser's 1 must not overflow
        if self.mask is not None:
            gate = gate.masked(self.mask)
            log_i, least = (masked(x, self.mask, -torch.inf) for x in (log_i, least))
        if gate.g is None:
            assert gate.decay is not None
            log_f = gate.decay.detach().abs().log()
        else:
            log_f = gate.g.detach()
        after = _running_max(log_f, least, m.detach())
        # h depends on none of these but the first: with `state` that says what C and n are, so if
        # a caller makes m a variable, its gradient is right; our own never is one
        fall = torch.cat([m[:, None], after[:, :-1]], 1) - after
        o, S = gated_linear_attention(
            q,
            k * torch.exp(log_i - after)[..., None],
            F.pad(v.to(after.dtype), (0, 1), value=1.0),  # [.., K + 1]: the last column makes n
            None if gate.g is None else gate.g + fall,
            decay=None if gate.decay is None else gate.decay * torch.exp(fall),
            initial_state=state,
            output_final_state=True,
            backend=self.backend,
        )
        assert S is not None
        floor = torch.exp(-after).clamp(min=LEAST_NORMALISER)
        h = o[..., :-1] / torch.maximum(o[..., -1].abs(), floor)[..., None]
        return h, S, after[:, -1]

    def mlstm_output(self, h: Tensor, norm: HeadNorm, skip: Tensor, c: Tensor, z: Tensor) -> Tensor:
        """(norm(h) + skip c) SiLU(z) [B, T, D]."""
        y: Tensor = norm(h).flatten(-2).to(z.dtype) + skip * c
        return y * F.silu(z)


TENSORS = TensorOps()
"""The operations without padding."""


def wide(x: Tensor) -> Tensor:
    """x in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def masked(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """x [B, T, ...] with `value` where mask [B, T] is False."""
    return x.masked_fill(~mask.view(*mask.shape, *[1] * (x.dim() - 2)), value)


@torch.no_grad()
def _running_max(log_f: Tensor, least: Tensor, m: Tensor) -> Tensor:
    """m_t = max(m_{t-1} + log|f_t|, least_t) [B, T, H], from m [B, H], in log2(T) passes.

    A token is the map m -> max(m + a, b), and two in a row are one of the same kind. Nothing is
    subtracted, so |f| may be 0; that counts as so small a number that exp(m_{t-1} - m_t) and its
    square are still finite.
    """
    a = log_f.clamp(min=-math.log(torch.finfo(log_f.dtype).max) / 2)
    b = least
    reach = 1
    while reach < a.shape[1]:
        later = a[:, reach:]
        b = torch.cat([b[:, :reach], torch.maximum(b[:, :-reach] + later, b[:, reach:])], 1)
        a = torch.cat([a[:, :reach], a[:, :-reach] + later], 1)
        reach *= 2
    return torch.maximum(m[:, None] + a, b)
