"""Kernels of flash-linear-attention that do the work of ours, at the block sizes it launches.

Where it tunes block sizes or warps on the GPU, one choice of its lists is taken. It has no
selective scan.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu_kernels.compiled import jit_function

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that there is no GPU
    from fla.modules.causal_conv1d import ops as conv
    from fla.ops.common import chunk_delta_h, chunk_o, chunk_scaled_dot_kkt
    from fla.ops.delta_rule import fused_recurrent, wy_fast
    from fla.ops.utils.solve_tril import merge_16x16_to_64x64_inverse_kernel

HEADS, SIZE, CHUNK = 16, 64, 64  # of the delta rule: H, K = V, tokens in a chunk
CHANNELS, WIDTH = 2048, 4  # of the convolution


@dataclass(frozen=True)
class Peer:
    """A kernel of flash-linear-attention."""

    work: str  # what it is part of
    kernel: Any
    constants: Mapping[str, Any]  # arguments that are no tensors; None: absent
    num_warps: int
    num_stages: int
    dtype: str = "bf16"  # of the tensors that are not in `types`
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its function."""
        return jit_function(self.kernel).__name__

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the kernel's arguments in the form that `compile_kernel` reads."""
        known: dict[str, Any] = {"T": "i32", "scale": "fp32", **self.types, **self.constants}
        names = [p.name for p in jit_function(self.kernel).params]
        return {name: known.get(name, f"*{self.dtype}") for name in names}


_PLAIN = {"cu_seqlens": None, "chunk_indices": None, "chunk_offsets": None, "IS_VARLEN": False}
_HEADS = {"H": HEADS, "HV": HEADS, "K": SIZE, "V": SIZE}
_CHUNKS = {**_PLAIN, **_HEADS, "BT": CHUNK, "BK": SIZE, "BV": SIZE}
_NO_GATE = {
    **{"g": None, "g_gamma": None, "gk": None, "dg": None},
    **{"USE_G": False, "USE_G_GAMMA": False, "USE_GK": False, "STATE_V_FIRST": False},
}
_STATES = {"h0": "*fp32", "ht": "*fp32", "dh0": "*fp32", "dht": "*fp32"}
_RECURRENT = {
    **{**_PLAIN, **_HEADS, "B": 8, "BK": SIZE, "NK": 1, "IS_BETA_HEADWISE": False},
    **{"USE_INITIAL_STATE": True, "STORE_FINAL_STATE": True, "USE_FINAL_STATE_GRADIENT": True},
}
_CONV = {
    **{**_PLAIN, "D": CHANNELS, "W": WIDTH, "BT": 64, "BW": WIDTH, "BD": 64},
    **{"ACTIVATION": "silu", "HAS_WEIGHT": True, "HAS_BIAS": False, "HAS_RESIDUAL": False},
    **{"bias": None, "db": None, "residual": None, "initial_state": None, "dht": None},
    **{"USE_INITIAL_STATE": False, "USE_FINAL_STATE": False},
    **{"stride_x_d": 1, "stride_dx_d": 1, "stride_dy_d": 1},
}
_STRIDES = {f"stride_{x}_{d}": "i32:16" for x in ("x", "dx", "dy") for d in "nt"}

PEERS = (
    Peer(
        "delta rule forward",
        fused_recurrent.fused_recurrent_delta_rule_fwd_kernel,
        {**_RECURRENT, "BV": 8},
        1, 1, "fp32", _STATES,
    ),
    Peer(
        "delta rule forward",
        chunk_scaled_dot_kkt.chunk_scaled_dot_kkt_fwd_kernel,
        {**_CHUNKS, **_NO_GATE},
        4, 3, types={"A": "*fp32"},
    ),
    Peer(
        "delta rule forward",
        merge_16x16_to_64x64_inverse_kernel,
        {**_CHUNKS, "USE_TMA": False, "DOT_PRECISION": "ieee"},
        4, 3, types={"A": "*fp32"},
    ),
    Peer("delta rule forward", wy_fast.recompute_w_u_fwd_kernel, _CHUNKS, 4, 3),
    Peer(
        "delta rule forward",
        chunk_delta_h.chunk_gated_delta_rule_fwd_kernel_h_blockdim64,
        {**_CHUNKS, **_NO_GATE, "USE_INITIAL_STATE": True, "STORE_FINAL_STATE": True,
         "SAVE_NEW_VALUE": True, "BV": 32},
        4, 3, types=_STATES,
    ),
    Peer("delta rule forward", chunk_o.chunk_fwd_kernel_o, {**_CHUNKS, **_NO_GATE}, 4, 3),
    Peer(
        "delta rule backward",
        fused_recurrent.fused_recurrent_delta_rule_bwd_kernel,
        {**_RECURRENT, "BV": 32},
        2, 1, "fp32", _STATES,
    ),
    Peer(
        "delta rule backward",
        chunk_o.chunk_bwd_kernel_dv_local,
        {**_CHUNKS, **_NO_GATE, "A": None, "USE_A": False},
        4, 3,
    ),
    Peer(
        "delta rule backward",
        chunk_delta_h.chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64,
        {**_CHUNKS, **_NO_GATE, "USE_INITIAL_STATE": True, "USE_FINAL_STATE_GRADIENT": True,
         "BV": 32},
        4, 3, types=_STATES,
    ),
    Peer(
        "delta rule backward",
        chunk_o.chunk_bwd_kernel_dqkwg,
        {**_CHUNKS, **_NO_GATE, "B": 8, "USE_DW": True},
        4, 3,
    ),
    Peer("delta rule backward", wy_fast.prepare_wy_repr_bwd_kernel, _CHUNKS, 2, 3),
    Peer(
        "convolution forward",
        conv.causal_conv1d_fwd_kernel,
        {**_CONV, "B": "i32"},
        4, 3, types={**_STRIDES, "weight": "*fp32", "dw": "*fp32"},
    ),
    Peer(
        "convolution backward",
        conv.causal_conv1d_bwd_kernel,
        {**_CONV, "B": "i32"},
        4, 3, types={**_STRIDES, "weight": "*fp32", "dw": "*fp32"},
    ),
)  # fmt: skip
