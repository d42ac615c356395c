"""The layers written a second time, straight from the paper's protocol, token by token.

One sequence [T, hidden_size] at a time, from a zero state. The layers keep q, k and v (and their
convolutions) in one matrix; here they are taken apart.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.layers import DeltaNet, Mamba


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Depthwise causal convolution of x [T, D] with weight [D, width], by PyTorch's own."""
    channels, width = weight.shape
    y = F.conv1d(x.T[None], weight[:, None], bias, padding=width - 1, groups=channels)
    return y[0, :, : len(x)].T


def delta_net_parts(layer: DeltaNet, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k [T, H, K], v [T, H, V], beta [T, H]."""
    heads = layer.config.num_heads
    parts = []
    rows = 0
    for name, size in zip("qkv", (layer.key_size, layer.key_size, layer.value_size), strict=True):
        mine = slice(rows, rows + heads * size)
        rows += heads * size
        y = x @ layer.qkv_proj.weight[mine].T
        if layer.conv is not None:
            y = causal_conv(y, layer.conv.weight[mine], None)
            y = y * torch.sigmoid(y)
        elif name == "v":
            y = y * torch.sigmoid(y)
        y = y.reshape(len(x), heads, size)
        if name != "v":
            y = y / torch.sqrt((y**2).sum(-1, keepdim=True) + 1e-6)
        parts.append(y)
    top = 2.0 if layer.config.allow_neg_eigval else 1.0
    beta = top / (1 + torch.exp(-x @ layer.beta.proj.weight.T))
    return *parts, beta


def delta_net(layer: DeltaNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """y [T, hidden_size] and S [H, K, V]."""
    q, k, v, beta = delta_net_parts(layer, x)
    gain, eps = layer.norm.weight, layer.config.output_norm_eps
    outputs = []
    states = [torch.zeros(layer.key_size, layer.value_size).double()] * layer.config.num_heads
    for t in range(len(x)):
        heads = []
        for h, S in enumerate(states):
            S = S + torch.outer(k[t, h], beta[t, h] * (v[t, h] - S.T @ k[t, h]))
            o = S.T @ (q[t, h] * layer.key_size**-0.5)
            heads.append(gain * o / torch.sqrt((o**2).mean() + eps))
            states[h] = S
        outputs.append(layer.o_proj.weight @ torch.cat(heads))
    return torch.stack(outputs), torch.stack(states)


def delta_layer(layer: DeltaNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """Any layer on the delta rule that has SiLU on q, k and v: y [T, hidden_size], S [H, K, V]."""
    c = layer.config
    n = getattr(c, "num_householder", 1)
    K, V, key_heads = layer.key_size, layer.value_size, c.num_heads
    heads = c.num_v_heads or key_heads
    parts = []  # q, the n keys, the n values
    rows = 0
    for count, size in [(key_heads, K)] * (1 + n) + [(heads, V)] * n:
        mine = slice(rows, rows + count * size)
        rows += count * size
        y = x @ layer.qkv_proj.weight[mine].T
        if layer.conv is not None:
            y = causal_conv(y, layer.conv.weight[mine], None)
        parts.append((y * torch.sigmoid(y)).reshape(len(x), count, size))
    parts[: 1 + n] = [y / torch.sqrt((y**2).sum(-1, keepdim=True) + 1e-6) for y in parts[: 1 + n]]
    top = 2.0 if c.allow_neg_eigval else 1.0
    beta = top / (1 + torch.exp(-x @ layer.beta.proj.weight.T)).reshape(len(x), n, heads)
    gate = torch.ones(len(x), heads)
    if hasattr(layer, "A_log"):
        dt = torch.log1p(torch.exp(x @ layer.a_proj.weight.T + layer.dt_bias))
        gate = torch.exp(-dt * torch.exp(layer.A_log))
        gate = 2 * gate - 1 if c.allow_neg_gate else gate

    outputs = []
    states = [torch.zeros(K, V).double()] * heads
    for t in range(len(x)):
        read = []
        for h, S in enumerate(states):
            own = h * key_heads // heads  # the head whose q and k this one shares
            S = gate[t, h] * S
            for j in range(n):
                k, v = parts[1 + j][t, own], parts[1 + n + j][t, h]
                factor = torch.eye(K) - beta[t, j, h] * torch.outer(k, k)
                S = factor @ S + beta[t, j, h] * torch.outer(k, v)
            o = S.T @ parts[0][t, own] / K**0.5
            o = layer.norm.weight * o / torch.sqrt((o**2).mean() + c.output_norm_eps)
            if c.output_gate:
                z = layer.g_proj.weight[h * V : (h + 1) * V] @ x[t]
                o = o * z * torch.sigmoid(z)
            read.append(o)
            states[h] = S
        outputs.append(layer.o_proj.weight @ torch.cat(read))
    return torch.stack(outputs), torch.stack(states)


def mamba_parts(layer: Mamba, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """u, delta, z [T, D], B, C [T, N]."""
    u, z = torch.chunk(x @ layer.in_proj.weight.T, 2, -1)
    if layer.conv is not None:
        u = causal_conv(u, layer.conv.weight, layer.conv.bias)
    u = u * torch.sigmoid(u)
    N, rank = layer.config.d_state, layer.dt_rank
    low_B_C = u @ layer.x_proj.weight.T
    low, B, C = low_B_C[:, :rank], low_B_C[:, rank : rank + N], low_B_C[:, rank + N :]
    delta = torch.log1p(torch.exp(low @ layer.dt_proj.weight.T + layer.dt_proj.bias))
    return u, delta, z, B, C


def mamba(layer: Mamba, x: Tensor) -> tuple[Tensor, Tensor]:
    """y [T, hidden_size] and h [D, N]."""
    u, delta, z, B, C = mamba_parts(layer, x)
    A = -torch.exp(layer.A_log)
    h = torch.zeros_like(A)
    outputs = []
    for t in range(len(x)):
        a = torch.exp(delta[t, :, None] * A)
        if layer.config.allow_neg_eigval:
            a = 2 * a - 1
        h = a * h + torch.outer(delta[t] * u[t], B[t])
        y = h @ C[t] + layer.D * u[t]
        outputs.append(layer.out_proj.weight @ (y * z[t] * torch.sigmoid(z[t])))
    return torch.stack(outputs), h
