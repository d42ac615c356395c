"""The short convolution as Triton kernels: a program for each block of tokens and channels.

A part of the channels is a launch of its own. Its blocks are [BT, BH, BC]: BH whole heads of up to
BC channels where heads are normalised (HEAD > 0), BC channels otherwise (HEAD = 0, BH = 1).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _block(
    T, first, size, HEAD: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr
):
    """Row, block of tokens, its first token, the others after it [BT, 1, 1] and the channels.

    The channels c [1, BH, BC] are those of x; last comes which of them exist.
    """
    WIDE: tl.constexpr = BH * HEAD if HEAD else BC  # channels of a block
    blocks, steps = tl.cdiv(size, WIDE), tl.cdiv(T, BT)
    row = (tl.program_id(0) // (blocks * steps)).to(tl.int64)
    step = tl.program_id(0) // blocks % steps
    within = tl.arange(0, BC)[None, None, :]
    c = tl.program_id(0) % blocks * WIDE + within
    ok = c < size
    if HEAD:
        c += tl.arange(0, BH)[None, :, None] * HEAD
        ok = (c < size) & (within < HEAD)
    return row, row * steps + step, step * BT, tl.arange(0, BT)[:, None, None], first + c, ok


@triton.jit
def _inputs(x, window, start, i, c, ok, T, x_token, channels, W: tl.constexpr):
    """Inputs at positions start + i < T, those before 0 from the window, in float32."""
    exists = ok & (start + i >= 0) & (start + i < T)
    at = x + start.to(tl.int64) * x_token + (i * x_token + c)
    values = tl.load(at, mask=exists, other=0.0).to(tl.float32)
    if window is not None:  # noqa: SIM102  # decided when compiling, the next one when running
        if start < 0:
            at = window + (start + i + W - 1) * channels + c
            values += tl.load(at, mask=ok & (start + i < 0), other=0.0).to(tl.float32)
    return values


@triton.jit
def _convolve(x, weight, bias, window, start, i, c, ok, T, x_token, channels, W: tl.constexpr):
    """What the SiLU gets, [BT, BH, BC]."""
    z = tl.zeros(i.shape, tl.float32)
    for w in tl.static_range(W):
        inputs = _inputs(x, window, start + (w - W + 1), i, c, ok, T, x_token, channels, W)
        z += inputs * tl.load(weight + c * W + w, mask=ok, other=0.0).to(tl.float32)
    if bias is not None:
        z += tl.load(bias + c, mask=ok, other=0.0).to(tl.float32)
    return z


@triton.jit
def _norm(s, eps):
    """The length of each head, as exact as float32 can: a vector along an axis keeps length 1."""
    return tl.sqrt_rn(tl.sum(s * s, 2) + eps)[:, :, None]


@triton.jit
def short_conv_forward_kernel(
    x, weight, bias, window, y, T, channels, first, size, x_row, x_token, eps,
    W: tl.constexpr, SILU: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y [B, T, size] of the channels from `first` on."""
    row, _, start, i, c, ok = _block(T, first, size, HEAD, BT, BH, BC)
    x += row * x_row
    if window is not None:
        window += row * (W - 1) * channels
    s = _convolve(x, weight, bias, window, start, i, c, ok, T, x_token, channels, W)
    if SILU:
        s = s * tl.sigmoid(s)
    if HEAD:
        s = tl.div_rn(s, tl.broadcast_to(_norm(s, eps), s.shape))
    to = y + (row * T + start) * size + (i * size + (c - first))
    tl.store(to, s.to(y.dtype.element_ty), mask=ok & (start + i < T))


@triton.jit
def short_conv_backward_kernel(
    x, weight, bias, window, dy, dz, partial,
    T, channels, first, size, x_row, x_token, dy_row, dy_token, eps,
    W: tl.constexpr, SILU: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradient dz [B, T, D] of what the SiLU gets, and dweight and dbias by block of tokens.

    partial: [blocks of tokens, W + 1, D], dbias being the last of its rows.
    """
    row, block, start, i, c, ok = _block(T, first, size, HEAD, BT, BH, BC)
    exists = ok & (start + i < T)
    x += row * x_row
    if window is not None:
        window += row * (W - 1) * channels
    at = dy + row * dy_row + start.to(tl.int64) * dy_token + (i * dy_token + (c - first))
    d = tl.load(at, mask=exists, other=0.0).to(tl.float32)
    if SILU or HEAD:
        z = _convolve(x, weight, bias, window, start, i, c, ok, T, x_token, channels, W)
        s = z
        if SILU:
            gate = tl.sigmoid(z)
            s = z * gate
        if HEAD:
            norm = _norm(s, eps)
            s = s / norm
            d = (d - s * tl.sum(s * d, 2)[:, :, None]) / norm
        if SILU:
            d = d * gate * (1 + z * (1 - gate))
    d = tl.where(exists, d, 0.0)
    tl.store(dz + (row * T + start) * channels + (i * channels + c), d, mask=exists)

    to = partial + block * (W + 1) * channels + c
    for w in tl.static_range(W):
        inputs = _inputs(x, window, start + (w - W + 1), i, c, ok, T, x_token, channels, W)
        tl.store(to + w * channels, tl.sum(d * inputs, 0, keep_dims=True), mask=ok)
    tl.store(to + W * channels, tl.sum(d, 0, keep_dims=True), mask=ok)


@triton.jit
def short_conv_inputs_kernel(
    dz, weight, lengths, d_final, dx, d_window, T, channels,
    W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx [B, T, D] and d_window [B, W - 1, D]: the gradients of window and x in one row."""
    row, _, start, i, c, ok = _block(T + W - 1, 0, channels, 0, BT, 1, BC)
    p = start + i  # in the window, then x
    places = i * channels + c
    d = tl.zeros(i.shape, tl.float32)
    for w in tl.static_range(W):
        exists = ok & (p >= w) & (p < T + w)
        value = tl.load(dz + (row * T + start - w) * channels + places, mask=exists, other=0.0)
        d += value * tl.load(weight + c * W + w, mask=ok, other=0.0).to(tl.float32)
    if d_final is not None:
        count = T if lengths is None else tl.load(lengths + row)
        # the last inputs that exist are at count .. count + W - 2
        at = d_final + (row * (W - 1) + start - count) * channels + places
        exists = ok & (p >= count) & (p < count + W - 1)
        d += tl.load(at, mask=exists, other=0.0).to(tl.float32)
    to = dx + (row * T + start - (W - 1)) * channels + places
    tl.store(to, d.to(dx.dtype.element_ty), mask=ok & (p >= W - 1) & (p < T + W - 1))
    if d_window is not None:
        to = d_window + (row * (W - 1) + start) * channels + places
        tl.store(to, d.to(d_window.dtype.element_ty), mask=ok & (p < W - 1))
