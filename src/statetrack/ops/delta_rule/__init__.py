"""The (gated, signed) delta rule."""

from __future__ import annotations

from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.backends import check_shape, choose, compute_dtype, full_precision
from statetrack.ops.delta_rule.chunk import delta_rule_chunk
from statetrack.ops.delta_rule.naive import delta_rule_naive
from statetrack.ops.ragged import Ragged, check_cu_seqlens, each_sequence

_IMPLEMENTATIONS = {"naive": delta_rule_naive, "torch": delta_rule_chunk}


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """S_t = a_t S_{t-1} + k_t beta_t (v_t - a_t S_{t-1}^T k_t)^T,  o_t = S_t^T q_t * scale.

    The transition a_t (I - beta_t k_t k_t^T) has the eigenvalue a_t (1 - beta_t |k_t|^2) along
    k_t: with unit keys and beta in [0, 2] it covers [-1, 1]. Gradients flow to every input, to
    `initial_state` and through the final state.

    Args:
        q, k: [B, T, H, K]. Keys are used as given: normalise them yourself.
        v: [B, T, H, V].
        beta: [B, T, H], in [0, 2] for unit keys.
        g: [B, T, H], the logarithm of the gate a_t (-inf allowed); a_t = 1 if absent.
        decay: [B, T, H], the gate a_t itself, signed, in [-1, 1]; instead of `g`.
        scale: factor on the output, K ** -0.5 if absent.
        initial_state: [B, H, K, V] ([N, H, K, V] with `cu_seqlens`), zero if absent.
        output_final_state: whether to return the state after the last token.
        cu_seqlens: [N + 1] boundaries of sequences packed into one row (B = 1).
        backend: "auto", "naive" (the defining loop) or "torch" (chunkwise).

    Returns:
        o [B, T, H, V] in the type of `v`, and the final state in float32 (float64 if any input
        is) or None.
    """
    if q.dim() != 4 or 0 in q.shape:
        raise UserError(f"delta_rule: q must be [B, T, H, K], none of them 0; got {list(q.shape)}")
    if v.dim() != 4 or 0 in v.shape:
        raise UserError(f"delta_rule: v must be [B, T, H, V], none of them 0; got {list(v.shape)}")
    B, T, H, K = q.shape
    V = v.shape[-1]
    check_shape("delta_rule", "q", q, "[B, T, H, K]", (B, T, H, K))
    check_shape("delta_rule", "k", k, "[B, T, H, K]", (B, T, H, K))
    check_shape("delta_rule", "v", v, "[B, T, H, V]", (B, T, H, V))
    check_shape("delta_rule", "beta", beta, "[B, T, H]", (B, T, H))
    if g is not None and decay is not None:
        raise UserError(
            "delta_rule takes g (the logarithm of the gate) or decay (the gate), not both"
        )
    gate = decay if g is None else g
    if gate is not None:
        check_shape("delta_rule", "g" if decay is None else "decay", gate, "[B, T, H]", (B, T, H))
    bounds = None if cu_seqlens is None else check_cu_seqlens(cu_seqlens, B, T)
    N = B if bounds is None else len(bounds) - 1
    if initial_state is not None:
        shape = (N, H, K, V)
        check_shape("delta_rule", "initial_state", initial_state, "[N, H, K, V]", shape)

    run = choose("delta_rule", backend, _IMPLEMENTATIONS)
    dtype = compute_dtype(q, k, v, beta, gate, initial_state)
    out_dtype = v.dtype
    q = q.to(dtype) * (K**-0.5 if scale is None else scale)
    k, v, beta = k.to(dtype), v.to(dtype), beta.to(dtype)
    if gate is not None:
        gate = gate.to(dtype).exp() if decay is None else gate.to(dtype)
    state = q.new_zeros(N, H, K, V) if initial_state is None else initial_state.to(dtype)

    with full_precision(q):
        if bounds is None:
            o, state = run(q, k, v, beta, gate, state)
        elif run is delta_rule_naive:
            o, state = each_sequence(run, (q, k, v, beta, gate), state, bounds)
        else:
            ragged = Ragged.from_bounds(bounds, B, T, q.device)
            beta = ragged.pad(beta).masked_fill(~ragged.valid[..., None], 0.0)
            if gate is not None:
                gate = ragged.pad(gate).masked_fill(~ragged.valid[..., None], 1.0)
            o, state = run(ragged.pad(q), ragged.pad(k), ragged.pad(v), beta, gate, state)
            o = ragged.unpad(o)
    return o.to(out_dtype), state if output_final_state else None
