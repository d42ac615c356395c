"""The selective scan as Triton kernels: a program for each sequence and block of channels.

A program goes over its sequence in chunks of BT tokens, whose states [BT, BN, BD] stay in
registers: tokens along a thread's registers, so that the scan needs no communication, channels
along the lanes of a warp. The forward pass keeps the state before every chunk. The backward pass
goes from there through the chunk again: it needs h_{t-1}, which h_t does not determine where a
transition is 0. Sums over programs are left to the caller, so results do not vary between runs.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _compose(a_left, b_left, a_right, b_right):
    """The map h -> a_right (a_left h + b_left) + b_right as one pair."""
    return a_right * a_left, a_right * b_left + b_right


@triton.jit
def _compose_both(a_left, b_left, x_left, p_left, a_right, b_right, x_right, p_right):
    """`_compose`, and the same without the last token, (x, p): an exclusive scan beside it.

    A token alone is (a, b, 1, 0), with -0.0 for 0: compilers know that adding it changes nothing.
    """
    return (
        a_right * a_left,
        a_right * b_left + b_right,
        x_right * a_left,
        x_right * b_left + p_right,
    )


@triton.jit
def _transition(delta, A, NEGATIVE: tl.constexpr):
    """a [BT, BN, BD] of delta [BT, BD] and A [BN, BD]; 1 where delta is 0."""
    a = tl.exp2(delta[:, None, :] * (A * LOG2_E)[None, :, :])
    if NEGATIVE:
        a = 2 * a - 1
    return a


@triton.jit
def _load(x, here, token, position, column, mask):
    """Tokens here + position and columns [BT, .] of x in float32, 0 outside of the mask."""
    at = x + here * token + (position[:, None] * token + column[None, :])
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _sequence(bounds, sequence, T, BT: tl.constexpr):
    """Row, first token and length of a sequence, and which kept state is its first."""
    if bounds is None:
        row, start, length = sequence, sequence * 0, T
        kept = sequence * tl.cdiv(T, BT)
    else:
        row, start = sequence * 0, tl.load(bounds + sequence)
        length = (tl.load(bounds + sequence + 1) - start).to(tl.int32)
        # of the tokens before, at most start / BT chunks are whole, and one of each sequence is not
        kept = start // BT + sequence
    return row, start, length, kept


@triton.jit
def selective_scan_forward_kernel(
    u, delta, A, B, C, D, z, initial, bounds,
    y, final, checkpoints,
    T, channels,
    u_row, u_token, delta_row, delta_token, B_row, B_token, C_row, C_token, z_row, z_token,
    N: tl.constexpr, NEGATIVE: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """y [B, T, D], the final states [S, D, N] and the state before every chunk [., N, D]."""
    blocks = tl.cdiv(channels, BD)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    row, start, length, kept = _sequence(bounds, sequence, T, BT)
    d = (tl.program_id(0) % blocks) * BD + tl.arange(0, BD)
    n = tl.arange(0, BN)
    d_ok, n_ok = d < channels, n < N
    ok = n_ok[:, None] & d_ok[None, :]  # [BN, BD]
    of_state = d[None, :] * N + n[:, None]  # in [D, N]

    a_log = tl.load(A + of_state, mask=ok, other=0.0).to(tl.float32)
    h = tl.zeros([BN, BD], tl.float32)
    if initial is not None:
        h = tl.load(initial + sequence * channels * N + of_state, mask=ok, other=0.0).to(tl.float32)
    if D is not None:
        skip = tl.load(D + d, mask=d_ok, other=0.0).to(tl.float32)
    u += row * u_row
    delta += row * delta_row
    B += row * B_row
    C += row * C_row
    y += row * T * channels
    if z is not None:
        z += row * z_row
    position = tl.arange(0, BT)

    for chunk in range(0, tl.cdiv(length, BT)):
        if checkpoints is not None:
            tl.store(
                checkpoints + ((kept + chunk) * N + n[:, None]) * channels + d[None, :], h, mask=ok
            )
        here = start + chunk * BT
        exists = position[:, None] < length - chunk * BT
        in_row, in_key = exists & d_ok[None, :], exists & n_ok[None, :]
        # delta is 0 after the end of the sequence: the state stays
        delta_t = _load(delta, here, delta_token, position, d, in_row)
        u_t = _load(u, here, u_token, position, d, in_row)
        B_t = _load(B, here, B_token, position, n, in_key)
        C_t = _load(C, here, C_token, position, n, in_key)
        a = _transition(delta_t, a_log, NEGATIVE)
        b = (delta_t * u_t)[:, None, :] * B_t[:, :, None]
        b = tl.where((position == 0)[:, None, None], a * h[None, :, :] + b, b)
        _, hs = tl.associative_scan((a, b), 0, _compose)
        out = tl.sum(hs * C_t[:, :, None], 1)
        if D is not None:
            out += skip[None, :] * u_t
        if z is not None:
            z_t = _load(z, here, z_token, position, d, in_row)
            out *= z_t * tl.sigmoid(z_t)
        to = y + here * channels + (position[:, None] * channels + d[None, :])
        tl.store(to, out.to(y.dtype.element_ty), mask=in_row)
        h = tl.sum(tl.where((position == BT - 1)[:, None, None], hs, 0.0), 0)

    if final is not None:
        tl.store(final + sequence * channels * N + of_state, h, mask=ok)


@triton.jit
def selective_scan_backward_kernel(
    u, delta, A, B, C, D, z, bounds, checkpoints, dy, d_final,
    du, ddelta, dA, dB, dC, dD, dz, d_initial,
    T, tokens, channels,
    u_row, u_token, delta_row, delta_token, B_row, B_token, C_row, C_token, z_row, z_token,
    dy_row, dy_token,
    N: tl.constexpr, NEGATIVE: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients; dA [S, D, N] and dD [S, D] by sequence, dB and dC [., B * T, N] by block.

    With g_t the gradient of h_t and G_t = a_t g_t, which h_{t-1} gets from h_t:
    g_t = C_t dy_t + G_{t+1}. The gradient of delta_t A is g_t a_t h_{t-1}, or for a_t = 2 exp - 1
    g_t (a_t + 1) h_{t-1}.
    """
    blocks = tl.cdiv(channels, BD)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    block = (tl.program_id(0) % blocks).to(tl.int64)
    row, start, length, kept = _sequence(bounds, sequence, T, BT)
    d = (tl.program_id(0) % blocks) * BD + tl.arange(0, BD)
    n = tl.arange(0, BN)
    d_ok, n_ok = d < channels, n < N
    ok = n_ok[:, None] & d_ok[None, :]
    of_state = d[None, :] * N + n[:, None]

    a_log = tl.load(A + of_state, mask=ok, other=0.0).to(tl.float32)
    after = tl.zeros([BN, BD], tl.float32)  # G of the token after the chunk
    if d_final is not None:
        after = tl.load(d_final + sequence * channels * N + of_state, mask=ok, other=0.0)
    da_log = tl.zeros([BN, BD], tl.float32)
    if D is not None:
        skip = tl.load(D + d, mask=d_ok, other=0.0).to(tl.float32)
        dskip = tl.zeros([BD], tl.float32)
    u += row * u_row
    delta += row * delta_row
    B += row * B_row
    C += row * C_row
    dy += row * dy_row
    if z is not None:
        z += row * z_row
    position = tl.arange(0, BT)
    chunks = tl.cdiv(length, BT)

    for reverse in range(0, chunks):
        chunk = chunks - 1 - reverse
        here = start + chunk * BT
        exists = position[:, None] < length - chunk * BT
        in_row, in_key = exists & d_ok[None, :], exists & n_ok[None, :]
        to_row = (row * T + here) * channels + (position[:, None] * channels + d[None, :])
        to_key = (block * tokens + row * T + here) * N + (position[:, None] * N + n[None, :])
        delta_t = _load(delta, here, delta_token, position, d, in_row)
        u_t = _load(u, here, u_token, position, d, in_row)
        B_t = _load(B, here, B_token, position, n, in_key)
        C_t = _load(C, here, C_token, position, n, in_key)
        dy_t = _load(dy, here, dy_token, position, d, in_row)
        before = tl.load(
            checkpoints + ((kept + chunk) * N + n[:, None]) * channels + d[None, :],
            mask=ok,
            other=0.0,
        )
        a = _transition(delta_t, a_log, NEGATIVE)
        b = (delta_t * u_t)[:, None, :] * B_t[:, :, None]
        one = tl.full([BT, BN, BD], 1.0, tl.float32)
        none = tl.full([BT, BN, BD], -0.0, tl.float32)
        is_first = (position == 0)[:, None, None]
        b_first = tl.where(is_first, a * before[None, :, :] + b, b)
        _, h, _, h_before = tl.associative_scan((a, b_first, one, none), 0, _compose_both)
        h_before = tl.where(is_first, before[None, :, :], h_before)

        if z is not None:
            z_t = _load(z, here, z_token, position, d, in_row)
            gate = tl.sigmoid(z_t)
            out = tl.sum(h * C_t[:, :, None], 1)
            if D is not None:
                out += skip[None, :] * u_t
            dz_t = dy_t * out * gate * (1 + z_t * (1 - gate))
            tl.store(dz + to_row, dz_t.to(dz.dtype.element_ty), mask=in_row)
            dy_t *= z_t * gate
        dC_t = tl.sum(h * dy_t[:, None, :], 2)
        tl.store(dC + to_key, dC_t, mask=in_key)

        direct = dy_t[:, None, :] * C_t[:, :, None]
        is_last = (position == BT - 1)[:, None, None]
        passed = a * tl.where(is_last, direct + after[None, :, :], direct)
        _, G, _, G_after = tl.associative_scan((a, passed, one, none), 0, _compose_both, True)
        g = direct + tl.where(is_last, after[None, :, :], G_after)
        after = tl.sum(tl.where(is_first, G, 0.0), 0)

        dB_t = tl.sum(g * (delta_t * u_t)[:, None, :], 2)
        tl.store(dB + to_key, dB_t, mask=in_key)
        # loaded again, to free its registers in between
        B_t = _load(B, here, B_token, position, n, in_key)
        written = tl.sum(g * B_t[:, :, None], 1)  # gradient of delta_t u_t
        slope = g * h_before * (a + 1 if NEGATIVE else a)  # gradient of delta_t A
        da_log += tl.sum(slope * delta_t[:, None, :], 0)
        ddelta_t = written * u_t + tl.sum(slope * a_log[None, :, :], 1)
        du_t = written * delta_t
        if D is not None:
            du_t += skip[None, :] * dy_t
            dskip += tl.sum(dy_t * u_t, 0)
        tl.store(du + to_row, du_t.to(du.dtype.element_ty), mask=in_row)
        tl.store(ddelta + to_row, ddelta_t.to(ddelta.dtype.element_ty), mask=in_row)

    tl.store(dA + sequence * channels * N + of_state, da_log, mask=ok)
    if D is not None:
        tl.store(dD + sequence * channels + d, dskip, mask=d_ok)
    if d_initial is not None:
        to = d_initial + sequence * channels * N + of_state
        tl.store(to, after.to(d_initial.dtype.element_ty), mask=ok)


@triton.jit
def selective_scan_step_kernel(
    state, u, delta, A, B, C, D, z, y,
    channels, state_row, state_channel, state_n,
    u_row, delta_row, B_row, C_row, z_row,
    N: tl.constexpr, NEGATIVE: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """One token: the state [B, D, N] in position, y [B, D]."""
    blocks = tl.cdiv(channels, BD)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    d = (tl.program_id(0) % blocks) * BD + tl.arange(0, BD)
    n = tl.arange(0, BN)
    d_ok, n_ok = d < channels, n < N
    ok = d_ok[:, None] & n_ok[None, :]  # [BD, BN]
    at = state + row * state_row + d[:, None].to(tl.int64) * state_channel + n[None, :] * state_n
    h = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    u_t = tl.load(u + row * u_row + d, mask=d_ok, other=0.0).to(tl.float32)
    delta_t = tl.load(delta + row * delta_row + d, mask=d_ok, other=0.0).to(tl.float32)
    B_t = tl.load(B + row * B_row + n, mask=n_ok, other=0.0).to(tl.float32)
    C_t = tl.load(C + row * C_row + n, mask=n_ok, other=0.0).to(tl.float32)
    a_log = tl.load(A + d[:, None] * N + n[None, :], mask=ok, other=0.0).to(tl.float32)
    a = tl.exp2(delta_t[:, None] * (a_log * LOG2_E))
    if NEGATIVE:
        a = 2 * a - 1
    h = a * h + (delta_t * u_t)[:, None] * B_t[None, :]
    tl.store(at, h.to(state.dtype.element_ty), mask=ok)
    out = tl.sum(h * C_t[None, :], 1)
    if D is not None:
        out += tl.load(D + d, mask=d_ok, other=0.0).to(tl.float32) * u_t
    if z is not None:
        z_t = tl.load(z + row * z_row + d, mask=d_ok, other=0.0).to(tl.float32)
        out *= z_t * tl.sigmoid(z_t)
    tl.store(y + row * channels + d, out.to(y.dtype.element_ty), mask=d_ok)
