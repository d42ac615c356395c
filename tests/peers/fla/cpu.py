"""flash-linear-attention's models on a CPU.

Their own code runs, but for what is written in Triton: recurrences become the package's own naive
functions; norms, convolutions and activations become torch's.
"""

from __future__ import annotations

from typing import Any

import fla.layers.delta_net
import fla.layers.gated_deltanet
import fla.layers.gated_deltaproduct
import fla.layers.gla
import fla.modules
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


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **options: Any) -> Any:
    assert options["use_qk_l2norm_in_kernel"]
    assert options["initial_state"] is None
    inputs = (x.transpose(1, 2) for x in (_unit(q), _unit(k), v, beta))
    o, state = delta_rule_recurrence(*inputs)
    return o.transpose(1, 2), state


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
) -> Any:
    for flag in ("qk_l2norm", "beta_sigmoid", "gate"):
        assert options[f"use_{flag}_in_kernel"]
    groups = v.shape[2] // q.shape[2]
    q, k = (_unit(x).repeat_interleave(groups, 2) for x in (q, k))
    beta = beta.sigmoid() * (2 if options["allow_neg_eigval"] else 1)
    g = -options["A_log"].exp() * F.softplus(g + options["dt_bias"])
    return naive_recurrent_gated_delta_rule(q, k, v, beta, g)


def gated_delta_product(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, **options: Any
) -> Any:
    assert options["use_qk_l2norm_in_kernel"]
    return naive_recurrent_gated_delta_product(
        _unit(q), _unit(k), v, g, beta, q.shape[-1] ** -0.5,
        num_householder=options["num_householder"],
    )  # fmt: skip


def gla(q: Tensor, k: Tensor, v: Tensor, gk: Tensor, **options: Any) -> Any:
    assert options["initial_state"] is None
    return naive_recurrent_gla(q, k, v, gk)


def conv(x: Tensor, weight: Tensor, activation: str | None, **options: Any) -> tuple[Tensor, None]:
    """x [B, T, D], weight [D, W]."""
    width = weight.shape[1]
    padded = F.pad(x.mT, (width - 1, 0))
    y = F.conv1d(padded, weight[:, None], groups=len(weight)).mT
    return (y if activation is None else F.silu(y)), None


def _conv_module(self: Any, x: Tensor, **options: Any) -> tuple[Tensor, None]:
    assert self.bias is None
    return conv(x, self.weight[:, 0], self.activation)


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
    monkeypatch.setattr(layers.gated_deltaproduct, "chunk_gated_delta_product", gated_delta_product)
    monkeypatch.setattr(layers.gla, "fused_recurrent_gla", gla)
    monkeypatch.setitem(layers.gla.ACT2FN, "swish", F.silu)
    modules: Any = fla.modules
    monkeypatch.setattr(modules.ShortConvolution, "forward", _conv_module)
    monkeypatch.setattr(modules.RMSNorm, "forward", _rms_norm)
    monkeypatch.setattr(modules.FusedRMSNormGated, "forward", _gated_norm)
    monkeypatch.setattr(modules.mlp.SwiGLULinear, "forward", _swiglu_linear)
