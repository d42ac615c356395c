"""Inputs for the ops: random numbers over the whole of every range, its ends included.

All are float64 with values that float32 can represent, so every number type starts from the same
numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def draw(seed: int) -> Callable[..., Tensor]:
    """A function that draws normal tensors: float64, but with values that float32 holds too."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).double()

    return normal


def spread(x: Tensor, low: float, high: float) -> Tensor:
    """Normal numbers turned into numbers from all of [low, high]."""
    uniform = torch.special.ndtr(x)
    return (low + (high - low) * uniform).float().double()


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1, as exactly as float32 can."""
    return (x / x.norm(dim=-1, keepdim=True)).float().double()


def with_exact(x: Tensor, *values: float) -> Tensor:
    """A copy of x in which every fifth entry is one of `values`, in turn."""
    x = x.clone()
    places = x.view(-1)[::5]
    places.copy_(torch.tensor(values, dtype=x.dtype).repeat(len(places))[: len(places)])
    return x


def delta_rule_inputs(
    B: int, T: int, H: int, K: int, V: int, *, gate: str | None = None, seed: int = 0
) -> Tensors:
    """Unit keys, beta over all of [0, 2], and a gate: None, "g" or "decay"."""
    normal = draw(seed)
    inputs = {
        "q": normal(B, T, H, K),
        "k": unit(normal(B, T, H, K)),
        "v": normal(B, T, H, V),
        "beta": with_exact(spread(normal(B, T, H), 0.0, 2.0), 2.0, 0.0),
        "initial_state": normal(B, H, K, V),
    }
    if gate == "g":
        g = spread(normal(B, T, H), -0.2, 0.0)
        inputs["g"] = with_exact(g, 0.0, -0.5, -torch.inf, -3.0)
    if gate == "decay":
        decay = spread(normal(B, T, H), -1.0, 1.0)
        inputs["decay"] = with_exact(decay, -1.0, 1.0, 0.0, 1.0, -1.0)
    return inputs


def delta_product_inputs(
    B: int, T: int, H: int, K: int, V: int, n: int, *, gate: str | None = None, seed: int = 0
) -> Tensors:
    """Those of the delta rule with n keys, values and betas per token."""
    inputs = delta_rule_inputs(B, T, H, K, V, gate=gate, seed=seed)
    steps = delta_rule_inputs(B, T * n, H, K, V, seed=seed + 1)
    return {**inputs, **{name: steps[name] for name in ("k", "v", "beta")}}


def linear_attention_inputs(
    B: int,
    T: int,
    H: int,
    K: int,
    V: int,
    *,
    gate: str | None = None,
    per_channel: bool = False,
    seed: int = 0,
) -> Tensors:
    """Those of the delta rule without beta, and with a gate for each key channel if asked for."""
    inputs = delta_rule_inputs(B, T, H, K, V, gate=gate, seed=seed)
    del inputs["beta"]
    if gate and per_channel:
        inputs[gate] = delta_rule_inputs(B, T, H * K, 1, 1, gate=gate)[gate].view(B, T, H, K)
    return inputs


def selective_scan_inputs(
    B: int, T: int, D: int, N: int, *, skip: bool = True, gate: bool = True, seed: int = 0
) -> Tensors:
    """delta from exactly 0 to so large that exp(delta A) nearly vanishes; `skip` is D, `gate` z."""
    normal = draw(seed)
    inputs = {
        "u": normal(B, T, D),
        "delta": with_exact(spread(normal(B, T, D), 0.0, 2.0), 0.0, 1e-3, 20.0),
        "A": -spread(normal(D, N), 0.2, 4.0),
        "B": normal(B, T, N),
        "C": normal(B, T, N),
        "initial_state": normal(B, D, N),
    }
    if skip:
        inputs["D"] = normal(D)
    if gate:
        inputs["z"] = normal(B, T, D)
    return inputs
