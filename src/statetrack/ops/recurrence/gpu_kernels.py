"""Triton kernels of the recurrence with a matrix-valued state, in float32, for heads of any size.

    S_t = a_t S_{t-1} + k_t u_t^T,   o_t = scale S_t^T q_t,
    u_t = v_t,  or  beta_t e_t  with  e_t = v_t - a_t S_{t-1}^T k_t  if there is a beta.

A program has one sequence, one head and BV columns of V, which do not depend on the others, and
holds its block of the state, [BK, BV] or [BV, BK], in registers while it goes through time. A token
has FACTORS steps, each with a key, a value and a beta; the gate comes before the first step, the
output after the last. Tokens and steps are counted through all sequences, in int64.

The backward pass needs S_{t-1} and dL/dS_t at the same time, for the gradient of the gate, and
never divides by a gate, which may be 0. `recurrence_states` keeps the state before every CHUNK-th
step of a sequence; `recurrence_backward` goes back in time and computes the states within a chunk
again from there. That takes no sums, as u is known by then.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sequence(bounds, T, H):
    """This program's row of [N, H], its sequence, head, first token and number of tokens."""
    row = tl.program_id(0).to(tl.int64)
    sequence = row // H
    if bounds is None:
        first = sequence * T
        tokens = T
    else:
        first = tl.load(bounds + sequence)
        tokens = (tl.load(bounds + sequence + 1) - first).to(tl.int32)
    return row, sequence, row % H, first, tokens


@triton.jit
def _vector(x, i, size: tl.constexpr):
    """Load [size], padded with zeros."""
    return tl.load(x + i, mask=i < size, other=0.0).to(tl.float32)


@triton.jit
def _gate(gate, i, channels, CHANNELS: tl.constexpr, LOG_GATE: tl.constexpr):
    """Load the gate of a token for each key channel; it is 1 past `channels`, which may be 0."""
    none: tl.constexpr = 0.0 if LOG_GATE else 1.0
    if CHANNELS:
        a = tl.load(gate + i, mask=i < channels, other=none).to(tl.float32)
    else:
        a = tl.load(gate, mask=channels > 0, other=none).to(tl.float32)
        a = tl.broadcast_to(a, i.shape)
    return tl.exp(a) if LOG_GATE else a


@triton.jit(do_not_specialize=["T"])
def recurrence_forward(
    q,  # element i of token t and head h is q[t * q_token + h * K + i]
    k,
    v,
    beta,  # None: linear attention
    gate,  # None: no gate
    initial,  # [N, H, K, V], None: zeros
    bounds,  # [N + 1] int64, where sequences begin and end; None: all have T tokens
    o,  # [tokens, H, V]
    error,  # [steps, H, V] for e, None: not kept
    final,  # [N, H, K, V]; may be `initial`
    scale,
    T,
    H,
    q_token,
    k_token,
    v_token,
    beta_token,
    gate_token,
    K: tl.constexpr,
    V: tl.constexpr,
    FACTORS: tl.constexpr,
    CHANNELS: tl.constexpr,  # whether each key channel has a gate of its own
    LOG_GATE: tl.constexpr,  # whether `gate` is log a
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """Compute o and the final state, and keep e."""
    row, _, head, first, tokens = _sequence(bounds, T, H)
    i = tl.arange(0, BK)
    j = tl.program_id(1) * BV + tl.arange(0, BV)
    inside = (i < K)[:, None] & (j < V)[None, :]
    block = row * K * V + i[:, None] * V + j[None, :]
    if initial is None:
        S = tl.zeros([BK, BV], tl.float32)
    else:
        S = tl.load(initial + block, mask=inside, other=0.0)
    for n in range(tokens):
        t = first + n
        if gate is not None:
            gates: tl.constexpr = K if CHANNELS else 1
            a = _gate(gate + t * gate_token + head * gates, i, K, CHANNELS, LOG_GATE)
            S *= a[:, None]
        for factor in range(FACTORS):
            s = t * FACTORS + factor
            k_s = _vector(k + s * k_token + head * K, i, K)
            u = _vector(v + s * v_token + head * V, j, V)
            if beta is not None:
                u -= tl.sum(S * k_s[:, None], axis=0)
                if error is not None:
                    tl.store(error + (s * H + head) * V + j, u, mask=j < V)
                u *= tl.load(beta + s * beta_token + head).to(tl.float32)
            S += k_s[:, None] * u[None, :]
        q_t = _vector(q + t * q_token + head * K, i, K)
        o_t = scale * tl.sum(S * q_t[:, None], axis=0)
        tl.store(o + (t * H + head) * V + j, o_t.to(o.dtype.element_ty), mask=j < V)
    tl.store(final + block, S, mask=inside)


@triton.jit
def _step(
    s,
    head,
    k,
    u,  # e, or v if there is no beta
    beta,
    gate,
    k_token,
    u_token,
    beta_token,
    gate_token,
    i,
    j,
    K: tl.constexpr,
    V: tl.constexpr,
    FACTORS: tl.constexpr,
    CHANNELS: tl.constexpr,
    LOG_GATE: tl.constexpr,
):
    """Load what step s does to the state: its gate, which is 1 inside a token, k and u."""
    a = tl.full(i.shape, 1.0, tl.float32)
    if gate is not None:
        gates: tl.constexpr = K if CHANNELS else 1
        gate_t = gate + (s // FACTORS) * gate_token + head * gates
        a = _gate(gate_t, i, tl.where(s % FACTORS == 0, K, 0), CHANNELS, LOG_GATE)
    k_s = _vector(k + s * k_token + head * K, i, K)
    u_s = _vector(u + s * u_token + head * V, j, V)
    if beta is not None:
        u_s *= tl.load(beta + s * beta_token + head).to(tl.float32)
    return a, k_s, u_s


@triton.jit(do_not_specialize=["T"])
def recurrence_states(
    k,
    u,  # e, or v if there is no beta
    beta,
    gate,
    initial,
    bounds,
    states,  # [steps // CHUNK + N, H, V, K]
    T,
    H,
    k_token,
    u_token,
    beta_token,
    gate_token,
    K: tl.constexpr,
    V: tl.constexpr,
    FACTORS: tl.constexpr,
    CHANNELS: tl.constexpr,
    LOG_GATE: tl.constexpr,
    CHUNK: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """Keep the state before every CHUNK-th step of each sequence."""
    row, sequence, head, first, tokens = _sequence(bounds, T, H)
    i = tl.arange(0, BK)
    j = tl.program_id(1) * BV + tl.arange(0, BV)
    inside = (i < K)[:, None] & (j < V)[None, :]
    block = i[:, None] * V + j[None, :]
    start = first * FACTORS
    steps = tokens * FACTORS
    if initial is None:
        S = tl.zeros([BK, BV], tl.float32)
    else:
        S = tl.load(initial + row * K * V + block, mask=inside, other=0.0)
    for c in range(tl.cdiv(steps, CHUNK)):
        # sequences do not overlap: each may begin one slot after its share of the steps before it
        slot = (start // CHUNK + sequence + c) * H + head
        tl.store(states + slot * K * V + i[:, None] + j[None, :] * K, S, mask=inside)
        for n in range(tl.minimum(CHUNK, steps - c * CHUNK)):
            a, k_s, u_s = _step(
                start + c * CHUNK + n, head, k, u, beta, gate,
                k_token, u_token, beta_token, gate_token,
                i, j, K, V, FACTORS, CHANNELS, LOG_GATE,
            )  # fmt: skip
            S = a[:, None] * S + k_s[:, None] * u_s[None, :]


@triton.jit(do_not_specialize=["T"])
def recurrence_backward(
    q,
    k,
    u,  # e, or v if there is no beta
    beta,
    gate,
    bounds,
    states,
    d_o,
    d_final,  # [N, H, K, V], None: zeros
    dq,  # [blocks of V, tokens, H, K], to be summed over the blocks
    dk,  # [blocks of V, steps, H, K], likewise
    dv,  # [steps, H, V]
    dbeta,  # [blocks of V, steps, H], likewise
    dgate,  # [blocks of V, tokens, H] or [blocks of V, tokens, H, K], likewise
    d_initial,  # [N, H, K, V], None: not wanted
    scale,
    T,
    H,
    all_tokens,
    q_token,
    k_token,
    u_token,
    beta_token,
    gate_token,
    d_o_token,
    K: tl.constexpr,
    V: tl.constexpr,
    FACTORS: tl.constexpr,
    CHANNELS: tl.constexpr,
    LOG_GATE: tl.constexpr,
    CHUNK: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """Compute all gradients, going back in time with G = dL/dS."""
    row, sequence, head, first, tokens = _sequence(bounds, T, H)
    i = tl.arange(0, BK)
    j = tl.program_id(1) * BV + tl.arange(0, BV)
    inside = (j < V)[:, None] & (i < K)[None, :]
    block = row * K * V + i[None, :] * V + j[:, None]
    start = first * FACTORS
    steps = tokens * FACTORS
    token_part = tl.program_id(1).to(tl.int64) * all_tokens  # where this block's part begins
    step_part = token_part * FACTORS
    if d_final is None:
        G = tl.zeros([BV, BK], tl.float32)
    else:
        G = tl.load(d_final + block, mask=inside, other=0.0)
    chunks = tl.cdiv(steps, CHUNK)
    for past in range(chunks):
        c = chunks - 1 - past
        slot = (start // CHUNK + sequence + c) * H + head
        kept = tl.load(states + slot * K * V + j[:, None] * K + i[None, :], mask=inside, other=0.0)
        count = tl.minimum(CHUNK, steps - c * CHUNK)
        for past_in_chunk in range(count):
            n = count - 1 - past_in_chunk
            S = kept
            for m in range(n):
                a, k_s, u_s = _step(
                    start + c * CHUNK + m, head, k, u, beta, gate,
                    k_token, u_token, beta_token, gate_token,
                    i, j, K, V, FACTORS, CHANNELS, LOG_GATE,
                )  # fmt: skip
                S = a[None, :] * S + k_s[None, :] * u_s[:, None]
            s = start + c * CHUNK + n
            t = s // FACTORS
            a, k_s, u_s = _step(
                s, head, k, u, beta, gate,
                k_token, u_token, beta_token, gate_token,
                i, j, K, V, FACTORS, CHANNELS, LOG_GATE,
            )  # fmt: skip
            X = a[None, :] * S  # the state that the step reads
            if s % FACTORS == FACTORS - 1:
                d_o_t = scale * _vector(d_o + t * d_o_token + head * V, j, V)
                q_t = _vector(q + t * q_token + head * K, i, K)
                G += q_t[None, :] * d_o_t[:, None]
                dq_t = tl.sum((X + k_s[None, :] * u_s[:, None]) * d_o_t[:, None], axis=0)
                tl.store(dq + ((token_part + t) * H + head) * K + i, dq_t, mask=i < K)
            dv_s = tl.sum(G * k_s[None, :], axis=1)
            if beta is None:
                dk_s = tl.sum(G * u_s[:, None], axis=0)
            else:
                e = _vector(u + s * u_token + head * V, j, V)
                tl.store(dbeta + (step_part + s) * H + head, tl.sum(dv_s * e, axis=0))
                dv_s *= tl.load(beta + s * beta_token + head).to(tl.float32)
                dk_s = tl.sum(G * u_s[:, None] - X * dv_s[:, None], axis=0)
                G -= k_s[None, :] * dv_s[:, None]
            tl.store(dk + ((step_part + s) * H + head) * K + i, dk_s, mask=i < K)
            tl.store(dv + (s * H + head) * V + j, dv_s, mask=j < V)
            if gate is not None:
                # of log a, without a division: a dL/da
                da = tl.sum(G * (X if LOG_GATE else S), axis=0)
                channels = tl.where(s % FACTORS == 0, K, 0)
                at = (token_part + t) * H + head
                if CHANNELS:
                    tl.store(dgate + at * K + i, da, mask=i < channels)
                else:
                    tl.store(dgate + at, tl.sum(da, axis=0), mask=channels > 0)
            G *= a[None, :]
    if d_initial is not None:
        tl.store(d_initial + block, G, mask=inside)
