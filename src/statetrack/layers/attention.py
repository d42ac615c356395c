"""Attention: the Transformer's softmax attention with rotary positions, the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from statetrack.config import at_least, option
from statetrack.errors import UserError
from statetrack.kernels.transforms import transformed
from statetrack.layers.base import NOT_LINEAR, Mixer, MixerConfig, register
from statetrack.layers.common import RMSNorm
from statetrack.layers.operations import TensorOps


@dataclass(frozen=True)
class AttentionConfig(MixerConfig):
    """Options of attention."""

    name: ClassVar[str] = "attention"
    label: ClassVar[str] = "Attention"
    no_switch: ClassVar[str] = "it keeps every token instead of a state that some A(x) changes"
    about: ClassVar[str] = "no A(x): causal softmax attention with rotary positions"

    num_heads: int = option(4, "heads of the queries")
    num_kv_heads: int | None = option(None, "heads of keys and values; None: as many as of queries")
    head_dim: int | None = option(None, "channels of a head; None: hidden_size / num_heads")
    rope_base: float | None = option(
        10_000.0, "base of the rotary positions' wavelengths; None for no positions"
    )
    rope_fraction: float = option(1.0, "share of a head's channels that the positions rotate")
    qk_norm_eps: float | None = option(
        None, "epsilon of a norm on all of q and all of k before the positions; None for no norm"
    )
    qk_norm_by_head: bool = option(False, "give each head of q and k a norm of its own instead")
    output_gate: bool = option(False, "gate what the heads read with a sigmoid")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_heads", self.num_heads, 1)
        if self.rope_base is not None:
            at_least("rope_base", self.rope_base, 1)
        if not 0 < self.rope_fraction <= 1:
            raise UserError(f"rope_fraction must lie in (0, 1]; got {self.rope_fraction}")
        if self.head_dim is not None:
            at_least("head_dim", self.head_dim, 1)
        if self.qk_norm_eps is not None:
            at_least("qk_norm_eps", self.qk_norm_eps, 0)
        elif self.qk_norm_by_head:
            raise UserError("qk_norm_by_head needs qk_norm_eps: without it there is no norm")
        if self.num_kv_heads is not None:
            at_least("num_kv_heads", self.num_kv_heads, 1)
            if self.num_heads % self.num_kv_heads:
                got = f"{self.num_kv_heads} for {self.num_heads}"
                raise UserError(f"num_kv_heads must divide num_heads; got {got}")

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(num_heads=3),
            cls(num_heads=6, num_kv_heads=2, rope_base=100.0),
            cls(num_heads=3, rope_base=None, qk_norm_eps=1e-5),
            cls(
                num_heads=2,
                num_kv_heads=1,
                head_dim=8,
                rope_fraction=0.5,
                qk_norm_eps=1e-5,
                qk_norm_by_head=True,
                output_gate=True,
            ),
        ]


class AttentionState(NamedTuple):
    """State of attention: its cache. A row has tokens at 0 .. length - 1 of S, which grows."""

    k: Tensor  # [B, S, H, D]: rotated keys, in the dtype of the weights
    v: Tensor  # [B, S, H, D]
    length: Tensor  # [B] int64


@register
class Attention(Mixer):
    """o_t = sum over s <= t of softmax_s(q_t^T k_s / sqrt(D)) v_s,  y_t = W_o o_t.

    q, k, v are projections of x without biases; q and k are rotated by their positions (RoPE),
    optionally after a norm. With `output_gate`, o is multiplied by sigmoid(W_g x).
    Options: see AttentionConfig.
    """

    config_class = AttentionConfig
    config: AttentionConfig
    unsupported: ClassVar[Mapping[str, str]] = {
        **NOT_LINEAR,
        "double_backward": "torch's fused attention has no second derivatives; its own "
        "`sdpa_kernel(SDPBackend.MATH)` around the call has",
        "fake_tensors": "how many tokens each row has is read from the cache's numbers",
    }

    def __init__(self, hidden_size: int, config: AttentionConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        c = self.config
        if c.head_dim is None and hidden_size % c.num_heads:
            got = f"{c.num_heads} heads for {hidden_size}"
            raise UserError(f"num_heads must divide hidden_size; got {got}")
        self.head_size = c.head_dim or hidden_size // c.num_heads
        self.rotated = 0 if c.rope_base is None else int(self.head_size * c.rope_fraction)
        if self.rotated % 2 or (c.rope_base is not None and not self.rotated):
            got = f"{self.rotated} of {self.head_size}"
            raise UserError(f"rotary positions rotate pairs of channels; got {got} channels")
        self.kv_heads = c.num_kv_heads or c.num_heads
        channels, kv_channels = c.num_heads * self.head_size, self.kv_heads * self.head_size
        self.qkv_proj = nn.Linear(hidden_size, channels + 2 * kv_channels, bias=False)
        self.g_proj = nn.Linear(hidden_size, channels, bias=False) if c.output_gate else None
        self.o_proj = nn.Linear(channels, hidden_size, bias=False)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if c.qk_norm_eps is not None:
            self.q_norm = RMSNorm(self.head_size if c.qk_norm_by_head else channels, c.qk_norm_eps)
            self.k_norm = RMSNorm(
                self.head_size if c.qk_norm_by_head else kv_channels, c.qk_norm_eps
            )
        for projection in (self.qkv_proj, self.g_proj, self.o_proj):
            if projection is not None:
                nn.init.normal_(projection.weight, std=0.02)

    def init_at_depth(self, layer: int, num_layers: int) -> None:
        # keep the variance of the residual stream the same at any depth
        nn.init.normal_(self.o_proj.weight, std=0.02 / math.sqrt(2 * num_layers))

    def init_state(self, batch: int) -> AttentionState:
        empty = self.o_proj.weight.new_zeros(batch, 0, self.kv_heads, self.head_size)
        length = torch.zeros(batch, dtype=torch.int64, device=self.device)
        return AttentionState(empty, empty, length)

    def _layout(self, state: AttentionState) -> list[list[int]]:
        layout = super()._layout(state)
        if state.k.shape[:2] == state.v.shape[:2]:
            layout[0][:1] = layout[1][:1] = [-1]  # k and v have the same S, of any size
        return layout

    def mix(
        self, x: Tensor, state: AttentionState, ops: TensorOps
    ) -> tuple[Tensor, AttentionState]:
        H, KV, valid = self.config.num_heads, self.kv_heads, ops.mask
        T, past = x.shape[1], state.k.shape[1]
        steps = torch.arange(T, device=x.device)
        # aligned: the past of every row fills the cache, so that new tokens are appended
        # (meta tensors have no values and count as aligned)
        aligned = past == 0 or (valid is None and (x.is_meta or bool((state.length == past).all())))
        positions = past + steps if aligned else state.length[:, None] + steps  # [T] or [B, T]

        sizes = [heads * self.head_size for heads in (H, KV, KV)]
        q, k, v = self.qkv_proj(x).split(sizes, -1)
        if not self.config.qk_norm_by_head:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.unflatten(-1, (-1, self.head_size)) for part in (q, k, v))
        if self.config.qk_norm_by_head:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.config.rope_base is not None:
            q, k = rotate((q, k), positions, self.config.rope_base, self.rotated)
        dtype = self.o_proj.weight.dtype
        q, k, v = (part.to(dtype) for part in (q, k, v))
        count = T if valid is None else valid.sum(1)
        length = state.length + count
        k_past, v_past = state.k.to(dtype), state.v.to(dtype)
        if aligned:
            # A copy takes less time than attention takes to read the cache; a cache that grows in
            # place could not be shared by states that branch.
            k, v = torch.cat([k_past, k], 1), torch.cat([v_past, v], 1)
        else:
            size = max(past, int(length.max()))
            there = x.new_ones(x.shape[:2], dtype=torch.bool) if valid is None else valid
            k, v = (
                _put(cache, new, positions, there, size)
                for cache, new in ((k_past, k), (v_past, v))
            )
        # padding lies at the right ends, where only padding sees it
        mask = None
        if past and not (aligned and T == 1):
            mask = torch.arange(k.shape[1], device=x.device) <= positions[..., None]  # [.., T, S]
            mask = mask if aligned else mask[:, None]
        # torch's fused attention has no forward mode and no rule for vmap
        with sdpa_kernel(SDPBackend.MATH) if transformed() else nullcontext():
            o = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                attn_mask=mask,
                is_causal=past == 0,
                enable_gqa=H != KV,
            )
        o = o.transpose(1, 2).flatten(-2)
        if self.g_proj is not None:
            o = o * self.g_proj(x).sigmoid()
        return self.o_proj(o), AttentionState(k, v, length)

    def transitions(self, x: Tensor) -> None:
        return None


def rotate(parts: Sequence[Tensor], positions: Tensor, base: float, size: int) -> list[Tensor]:
    """Rotate each pair (x_i, x_{i + size/2}) of every part by position * base^(-2 i / size).

    parts: [B, T, H, D], each with its own H; positions: [T] or [B, T]. The channels from `size` on
    stay. In float32 or wider.
    """
    dtype, half = parts[0].dtype, size // 2
    dtype = torch.promote_types(dtype, torch.float32)
    frequencies = base ** (-torch.arange(half, dtype=dtype, device=positions.device) / half)
    angles = (positions[..., None] * frequencies)[..., None, :]  # [.., T, 1, size / 2]
    cos, sin = angles.cos(), angles.sin()
    turned = []
    for x in parts:
        a, b, rest = x.to(dtype).tensor_split((half, size), -1)
        turned.append(torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1))
    return turned


def _put(cache: Tensor, new: Tensor, positions: Tensor, there: Tensor, size: int) -> Tensor:
    """Extend the cache [B, S, H, D] to `size` and write the tokens at their positions."""
    cache = F.pad(cache, (0, 0, 0, 0, 0, size - cache.shape[1]))
    rows, columns = there.nonzero(as_tuple=True)
    return cache.index_put((rows, positions[rows, columns]), new[rows, columns])
