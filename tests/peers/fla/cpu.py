"""flash-linear-attention's layers and models on a CPU.

Their own code runs, but for what is written in Triton: recurrences become the package's own naive
functions; norms, convolutions and activations become torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import fla.layers.delta_net
import fla.layers.gated_deltanet
import fla.layers.gated_deltaproduct
import fla.layers.gla
import fla.modules
import fla.modules.causal_conv1d.ops
import fla.modules.mlp
import pytest
import torch
import torch.nn.functional as F
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.gla.naive import naive_recurrent_gla
from torch import Tensor

L2_EPS = 1e-6


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPS)


def _run(
    op: Callable[..., tuple[Tensor, Tensor]],
    inputs: tuple[Tensor, ...],
    initial_state: Tensor | None,
    output_final_state: bool | None,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """`op(*inputs, initial_state)`, packed sequences one by one; `state_v_first`: states [V, K]."""
    if initial_state is not None and state_v_first:
        initial_state = initial_state.mT
    if cu_seqlens is None:
        o, state = op(*inputs, initial_state)
    else:
        parts = []
        for n, (first, last) in enumerate(pairwise(cu_seqlens.tolist())):
            before = None if initial_state is None else initial_state[n : n + 1]
            parts.append(op(*(x[:, first:last] for x in inputs), before))
        o, state = torch.cat([o for o, _ in parts], 1), torch.cat([state for _, state in parts])
    if not output_final_state:
        return o, None
    return o, state.mT if state_v_first else state


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **options: Any) -> Any:
    assert options["use_qk_l2norm_in_kernel"]

    def op(*inputs: Any) -> Any:
        *tensors, initial_state = inputs
        o, state = delta_rule_recurrence(*(x.transpose(1, 2) for x in tensors), initial_state)
        return o.transpose(1, 2), state

    return _run(op, (_unit(q), _unit(k), v, beta), **options)


def plain_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, **options: Any
) -> Any:
    """Without the layer's gate functions."""
    assert options["use_qk_l2norm_in_kernel"]
    g = torch.zeros_like(beta) if g is None else g
    groups = v.shape[2] // q.shape[2]
    q, k = (_unit(x).repeat_interleave(groups, 2) for x in (q, k))

    def op(*inputs: Any) -> Any:
        *tensors, initial_state = inputs
        return naive_recurrent_gated_delta_rule(*tensors, None, initial_state, True)

    return _run(op, (q, k, v, beta, g), **options)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
) -> Any:
    for flag in ("beta_sigmoid", "gate"):
        assert options[f"use_{flag}_in_kernel"]
    beta = beta.sigmoid() * (2 if options["allow_neg_eigval"] else 1)
    g = -options["A_log"].exp() * F.softplus(g + options["dt_bias"])
    return plain_gated_delta_rule(q, k, v, g, beta, **options)


def gated_delta_product(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, **options: Any
) -> Any:
    assert options["use_qk_l2norm_in_kernel"]
    o, state = naive_recurrent_gated_delta_product(
        _unit(q), _unit(k), v, g, beta, q.shape[-1] ** -0.5, cu_seqlens=options["cu_seqlens"],
        initial_state=options["initial_state"], num_householder=options["num_householder"],
    )  # fmt: skip
    return o, state if options["output_final_state"] else None


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    g: Tensor | None = None,
    **options: Any,
) -> Any:
    """The recurrent function calls the gate gk, the chunked one g."""

    def op(*inputs: Any) -> Any:
        return naive_recurrent_gla(*inputs, output_final_state=True)

    return _run(op, (q, k, v, g if gk is None else gk), **options)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """x [B, T, D], weight [D, W], states [N, D, W]: the last W inputs."""
    channels, width = weight.shape

    def op(x: Tensor, initial_state: Tensor | None) -> tuple[Tensor, Tensor]:
        if initial_state is None:
            initial_state = x.new_zeros(len(x), channels, width)
        window = torch.cat([initial_state, x.mT], -1)  # [B, D, W + T]
        y = F.conv1d(window, weight[:, None], bias, groups=channels)[..., 1:].mT
        return (y if activation is None else F.silu(y)), window[..., -width:]

    return _run(op, (x,), initial_state, output_final_state, cu_seqlens)


def conv_update(
    x: Tensor, cache: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, **_: Any
) -> tuple[Tensor, Tensor]:
    """One token for each sequence; `cache` is written in place, as the kernel does."""
    y, state = conv(x.reshape(len(cache), 1, -1), weight, bias, activation, cache, True)
    assert state is not None
    return y.reshape(x.shape), cache.copy_(state)


def _rms_norm(self: Any, x: Tensor, residual: Tensor | None = None, prenorm: bool = False) -> Any:
    x = x if residual is None else x + residual
    y = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
    return (y, x) if prenorm else y


def _gated_norm(self: Any, x: Tensor, g: Tensor) -> Tensor:
    gate = torch.sigmoid(g) if self.activation == "sigmoid" else F.silu(g)
    return F.rms_norm(x, x.shape[-1:], self.weight, self.eps) * gate


def _swiglu_linear(self: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: None) -> Tensor:
    return F.linear(F.silu(gate) * up, weight)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built in Triton is torch's for a while."""
    layers: Any = fla.layers
    for name in ("chunk_delta_rule", "fused_recurrent_delta_rule"):
        monkeypatch.setattr(layers.delta_net, name, delta_rule)
    for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"):
        monkeypatch.setattr(layers.gated_deltanet, name, gated_delta_rule)
    monkeypatch.setattr(layers.gated_deltanet, "causal_conv1d", conv)
    products = layers.gated_deltaproduct
    monkeypatch.setattr(products, "chunk_gated_delta_product", gated_delta_product)
    monkeypatch.setattr(products, "fused_recurrent_gated_delta_rule", plain_gated_delta_rule)
    for name in ("chunk_gla", "fused_recurrent_gla"):
        monkeypatch.setattr(layers.gla, name, gla)
    monkeypatch.setitem(layers.gla.ACT2FN, "swish", F.silu)
    modules: Any = fla.modules
    convolution = modules.causal_conv1d.ops
    monkeypatch.setattr(convolution, "causal_conv1d", conv)
    monkeypatch.setattr(convolution, "causal_conv1d_update", conv_update)
    monkeypatch.setattr(modules.RMSNorm, "forward", _rms_norm)
    monkeypatch.setattr(modules.FusedRMSNormGated, "forward", _gated_norm)
    monkeypatch.setattr(modules.mlp.SwiGLULinear, "forward", _swiglu_linear)
