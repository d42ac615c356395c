"""The kernels of decoding steps, as methods that record them: see ops/recorder.py."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from statetrack.kernels.interface import STRUCTURES
from statetrack.ops.recorder import NotRecordableError, Recorder
from statetrack.ops.short_conv.native import MAX_WIDTH


class Program(Recorder):
    """The kernels that a program can be made of; all tensors [B, ...], the results too."""

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, add: Tensor | None = None
    ) -> Tensor:
        """W x + bias + add, for x [B, in] and weight [out, in] or columns of a larger."""
        out, size = weight.shape
        if x.shape[1] != size:
            raise NotRecordableError(f"{x.shape[1]} features for a weight of {size}")
        y = self.empty(out)
        sizes = {"weight_row": weight.stride(0), "rows": self.batch, "in": size, "out": out}
        self.add("linear", x=x, weight=weight, bias=bias, add=add, y=y, **sizes)
        return y

    def block_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [B, blocks * size] times the block-diagonal weight [blocks, size, size]."""
        blocks, size, _ = weight.shape
        y = self.empty(blocks * size)
        sizes = {"rows": self.batch, "blocks": blocks, "size": size}
        self.add("block_linear", x=x, weight=weight, y=y, **sizes)
        return y

    def short_conv(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None = None,
        window: Tensor | None = None,
        *,
        sizes: Sequence[int],
        head_sizes: Sequence[int] | None = None,
        silu: bool = True,
    ) -> tuple[list[Tensor], Tensor]:
        """`ops.short_conv` of one token x [B, D]; without a weight only what follows it there."""
        if weight is None:  # a convolution that does nothing
            weight = self.made(torch.ones(sum(sizes), 1, dtype=torch.float32, device="cpu"))
        D, W = weight.shape
        if W > MAX_WIDTH or x.shape[1] != D:
            raise NotRecordableError(f"no convolution of width {W} on {D} channels")
        parts, after = [self.empty(size) for size in sizes], self.empty(W - 1, D)
        table = (STRUCTURES["Part"] * len(sizes))()
        for row, y, head in zip(table, parts, head_sizes or [0] * len(sizes), strict=True):
            row.y, row.size, row.head = y.data_ptr(), y.shape[1], head
        self._tables.append(table)
        self.add(
            "short_conv_forward",
            x=x,
            weight=weight,
            bias=bias,
            window=window,
            final=after,
            parts=ctypes.addressof(table),
            row=D,
            token=D,
            B=self.batch,
            T=1,
            D=D,
            W=W,
            num_parts=len(sizes),
            silu=silu,
            eps=1e-6,
        )
        return parts, after

    def activated(self, x: Tensor, *, silu: bool = True, head_size: int = 0) -> Tensor:
        """SiLU of x [B, D], then heads normalised to length 1, each if asked for."""
        (y,), _ = self.short_conv(x, None, sizes=[x.shape[1]], head_sizes=[head_size], silu=silu)
        return y

    def swiglu(self, x: Tensor) -> Tensor:
        """SiLU of the first half of x [B, 2 D] times the second."""
        size = x.shape[1] // 2
        y = self.empty(size)
        self.add("swiglu_forward", x=x, y=y, rows=self.batch, size=size)
        return y

    def sigmoid_gate(
        self, x: Tensor, low: float, high: float, *, power: float = 1.0, stretch: float = 0.0
    ) -> Tensor:
        """low + (high - low) sigmoid(x)^power, or stretched past its ends and clipped."""
        y = self.empty(*x.shape[1:])
        ends = {"low": low, "high": high, "power": power, "stretch": stretch}
        self.add("sigmoid_gate", x=x, y=y, count=x.numel(), **ends)
        return y

    def step_sizes(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        log_rate: Tensor | None = None,
        *,
        least: float = 0.0,
        most: float | None = None,
        signed: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """delta = softplus(x + bias) [B, size], and a = exp(-exp(log_rate) delta), or 2 a - 1."""
        delta, gate = self.empty(x.shape[1]), self.empty(x.shape[1])
        self.add(
            "step_sizes",
            x=x,
            bias=bias,
            rate=log_rate,
            delta=delta,
            gate=gate,
            rows=self.batch,
            size=x.shape[1],
            negative=signed,
            least=least,
            most=float("inf") if most is None else most,
        )
        return delta, gate

    def scale_heads(
        self, x: Tensor, scale: Tensor, add: Tensor | None = None, *, heads: int
    ) -> Tensor:
        """scale x + add, for x [B, heads * size] and scale [B, heads] or [heads]."""
        y = self.empty(x.shape[1])
        self.add(
            "scale_heads",
            x=x,
            scale=scale,
            add=add,
            y=y,
            rows=self.batch,
            heads=heads,
            size=x.shape[1] // heads,
            scale_per_row=scale.dim() == 2,
        )
        return y

    def norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        gate: Tensor | None = None,
        *,
        gate_first: bool = False,
    ) -> Tensor:
        """RMSNorm of each len(weight) numbers of x [B, D], gated as `GatedRMSNorm` is."""
        y = self.empty(x.shape[1])
        sizes = {"rows": x.numel() // len(weight), "size": len(weight), "eps": eps}
        if gate is None:
            self.add("rms_norm_forward", x=x, weight=weight, y=y, **sizes)
        else:
            sizes["gate_first"] = gate_first
            self.add("gated_norm", x=x, gate=gate, weight=weight, y=y, **sizes)
        return y

    def recurrence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor | None,
        gate: Tensor | None,
        state: Tensor,
        *,
        key_heads: int,
        factors: int = 1,
        gate_channels: int = 1,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """o [B, H V] and the next state, from `state` [B, H, K, V].

        q [B, key_heads, K], k [B, factors, key_heads, K], v [B, factors, H, V], beta [B, factors,
        H] and the gate [B, H, gate_channels], with any of their dimensions behind B flattened.
        """
        B, H, K, V = state.shape
        o, after = self.empty(H * V), self.empty(H, K, V)
        self.add(
            "recurrence_step",
            **{"q": q, "k": k, "v": v, "beta": beta, "gate": gate},
            **{"before": state, "state": after, "o": o},
            **{"B": B, "H": H, "K": K, "V": V, "factors": factors, "key_heads": key_heads},
            gate_channels=gate_channels,
            scale=K**-0.5 if scale is None else scale,
        )
        return o, after

    def selective_scan(
        self,
        u: Tensor,
        delta: Tensor,
        log_rates: Tensor,
        B: Tensor,
        C: Tensor,
        skip: Tensor,
        z: Tensor,
        state: Tensor,
        *,
        signed: bool,
    ) -> tuple[Tensor, Tensor]:
        """y [B, D] and the next state, from `state` [B, D, N]; rates are -exp(log_rates)."""
        _, D, N = state.shape
        y, after = self.empty(D), self.empty(D, N)
        self.add(
            "selective_scan_step",
            **{"u": u, "delta": delta, "A": log_rates, "B": B, "C": C, "skip": skip, "z": z},
            **{"before": state, "state": after, "y": y},
            **{"rows": self.batch, "D": D, "N": N, "negative": signed, "log_rates": True},
        )
        return y, after

    def mlstm_write(
        self, gates: Tensor, k: Tensor, v: Tensor, m: Tensor, *, signed: bool, least_floor: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """k and v as mLSTM writes them, its gate, its normaliser's floor and the next m."""
        _, heads = m.shape
        size = k.shape[1] // heads
        names = "k_written", "v_one", "gate", "floor", "m_next"
        sizes = heads * size, heads * (size + 1), heads, heads, heads
        made = [self.empty(n) for n in sizes]
        self.add(
            "mlstm_write",
            **{"gates": gates, "k": k, "v": v, "m": m},
            **dict(zip(names, made, strict=True)),
            **{"rows": self.batch, "heads": heads, "size": size, "negative": signed},
            least_floor=least_floor,
        )
        k_written, v_one, gate, floor, m_next = made
        return k_written, v_one, gate, floor, m_next

    def mlstm_read(
        self,
        o: Tensor,
        floor: Tensor,
        weight: Tensor,
        skip: Tensor,
        c: Tensor,
        z: Tensor,
        *,
        heads: int,
        eps: float,
    ) -> Tensor:
        """(norm(h) weight + skip c) silu(z) for o [B, heads, size + 1], h over its last column."""
        y = self.empty(c.shape[1])
        self.add(
            "mlstm_read",
            **{"o": o, "floor": floor, "weight": weight, "skip": skip, "c": c, "z": z, "y": y},
            **{"rows": self.batch, "heads": heads, "size": c.shape[1] // heads, "eps": eps},
        )
        return y
