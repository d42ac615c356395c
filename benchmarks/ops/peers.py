"""The other packages' functions, under our argument names.

Each is imported where it is called: it is installed in one of two environments only. The functions
of transformers are unwrapped, since the wrapper may hand them to kernels for GPUs.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor


def fla_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, chunk_size: int) -> Tensor:
    """[B, H, T, ...], T a multiple of the chunk size."""
    from fla.ops.delta_rule.naive import delta_rule_chunkwise

    return delta_rule_chunkwise(q, k, v, beta, chunk_size=chunk_size)[0]


def fla_delta_product(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, num_householder: int, chunk_size: int
) -> Tensor:
    """A delta rule of T * n steps, read at every n-th; fla has no chunkwise product in torch."""
    batch, heads, length, size = q.shape
    spread = q.new_zeros(batch, heads, length, num_householder, size)
    spread[..., -1, :] = q
    o = fla_delta_rule(spread.flatten(2, 3), k, v, beta, chunk_size)
    return o[:, :, num_householder - 1 :: num_householder]


def fla_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, chunk_size: int
) -> Tensor:
    """[B, T, H, ...]."""
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule

    return naive_chunk_gated_delta_rule(q, k, v, g, beta, chunk_size=chunk_size)[0]


def fla_linear_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor, chunk_size: int) -> Tensor:
    """[B, T, H, ...]."""
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla

    return naive_chunk_simple_gla(q, k, v, g, chunk_size=chunk_size)[0]


def hf_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, chunk_size: int
) -> Tensor:
    """[B, T, H, ...]."""
    from transformers.models.qwen3_next import modeling_qwen3_next as model

    run: Any = inspect.unwrap(model.torch_chunk_gated_delta_rule)
    return run(q, k, v, g, beta, chunk_size=chunk_size)[0]


def hf_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, chunk_size: int) -> Tensor:
    """The gated one with gates of 1."""
    return hf_gated_delta_rule(q, k, v, beta, torch.zeros_like(beta), chunk_size)


def hf_linear_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor, chunk_size: int) -> Tensor:
    """Mamba-2's scan [B, T, H, ...]: with dt = 1, A may be the logarithm of every gate."""
    from transformers.models.mamba2 import modeling_mamba2 as model

    run: Any = inspect.unwrap(model.mamba2_chunk_scan)
    return run(v, torch.ones_like(g), g, k, q * q.shape[-1] ** -0.5, chunk_size)


def hf_selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """[B, D, T] and [B, N, T]; transformers' own loop."""
    from transformers.models.mamba import modeling_mamba as model

    run: Any = inspect.unwrap(model.mamba_selective_scan)
    return run(u, delta, A, B, C)


def mambapy_selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, allow_neg_eigval: bool = False
) -> Tensor:
    """[B, T, D]; mamba.py's Mamba.selective_scan, which leaves the range of a to its caller."""
    from mambapy.pscan import pscan

    a = torch.exp(delta[..., None] * A)
    if allow_neg_eigval:
        a = 2 * a - 1
    h = pscan(a, delta[..., None] * B[:, :, None] * u[..., None])
    return (h @ C[..., None]).squeeze(3)
