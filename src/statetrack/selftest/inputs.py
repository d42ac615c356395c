"""Inputs of the recurrences: random numbers over the whole of every range, its ends included."""

from __future__ import annotations

import torch

from statetrack.testing.inputs import Tensors, draw, spread, unit, with_exact


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
