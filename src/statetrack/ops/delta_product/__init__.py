"""Products of generalised Householder matrices: several delta-rule steps for each token."""

from __future__ import annotations

from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.delta_product.chunk import delta_product_chunk
from statetrack.ops.delta_product.naive import delta_product_naive
from statetrack.ops.recurrence import run_recurrence

_IMPLEMENTATIONS = {"naive": delta_product_naive, "torch": delta_product_chunk}


def delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    num_householder: int,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """n = num_householder steps of the delta rule per token, after one gate, then one output.

    S := a_t S_{t-1};  S := S + k_tj beta_tj (v_tj - S^T k_tj)^T for j = 1 .. n;
    S_t = S,  o_t = S_t^T q_t * scale.

    The transition a_t (I - beta_tn k_tn k_tn^T) ... (I - beta_t1 k_t1 k_t1^T) is a product of n
    generalised Householder matrices: with beta in [0, 2] and n = K it can be any orthogonal
    matrix, so complex eigenvalues too.

    Args:
        q: [B, T, H, K].
        k: [B, T * n, H, K], the n keys of a token one after the other, the first applied first.
        v: [B, T * n, H, V].
        beta: [B, T * n, H], in [0, 2] for unit keys.
        g, decay: [B, T, H], one gate per token, as in `delta_rule`.
        num_householder: n, at least 1.
        scale, initial_state, output_final_state, cu_seqlens, backend: as in `delta_rule`;
            `cu_seqlens` counts tokens.

    Returns:
        o [B, T, H, V] in the type of `v`, and the final state in float32 (float64 if any input
        is) or None.
    """
    if num_householder < 1:
        raise UserError(f"delta_product: num_householder must be at least 1; got {num_householder}")
    return run_recurrence(
        "delta_product",
        _IMPLEMENTATIONS,
        q,
        k,
        v,
        beta,
        g,
        decay,
        num_householder=num_householder,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )
