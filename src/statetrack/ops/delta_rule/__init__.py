"""The (gated, signed) delta rule."""

from __future__ import annotations

from torch import Tensor

from statetrack.ops.delta_rule.chunk import delta_rule_chunk
from statetrack.ops.delta_rule.naive import delta_rule_naive
from statetrack.ops.recurrence import run_recurrence

_IMPLEMENTATIONS = {"naive": delta_rule_naive, "torch": delta_rule_chunk}


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
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
        scale: factor on the output, a number or a 0-d tensor; K ** -0.5 if absent.
        initial_state: [B, H, K, V] ([N, H, K, V] with `cu_seqlens`), zero if absent.
        output_final_state: whether to return the state after the last token.
        cu_seqlens: [N + 1] boundaries of sequences packed into one row (B = 1).
        backend: "auto", "naive" (the defining loop), "torch" (chunkwise) or "native" (C++, CPU).

    Returns:
        o [B, T, H, V] in the type of `v`, and the final state in float32 (float64 if any input
        is) or None.
    """
    return run_recurrence(
        "delta_rule",
        _IMPLEMENTATIONS,
        q,
        k,
        v,
        beta,
        g,
        decay,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )
