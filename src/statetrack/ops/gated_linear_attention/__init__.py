"""Linear attention with gates of any sign, per head or per key channel."""

from __future__ import annotations

from torch import Tensor

from statetrack.ops.gated_linear_attention.chunk import gated_linear_attention_chunk
from statetrack.ops.gated_linear_attention.naive import gated_linear_attention_naive
from statetrack.ops.recurrence import run_recurrence

_IMPLEMENTATIONS = {"naive": gated_linear_attention_naive, "torch": gated_linear_attention_chunk}


def gated_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T,  o_t = S_t^T q_t * scale.

    With a gate on each key channel this is GLA, with one for each head Mamba-2 and RetNet, and
    with a column of ones appended to v the sum and the normaliser of mLSTM. Gates may be negative
    or 0: nothing is formed in log space. Gradients flow to every input, to `initial_state` and
    through the final state.

    Args:
        q, k: [B, T, H, K].
        v: [B, T, H, V].
        g: [B, T, H] or [B, T, H, K], the logarithm of the gate (-inf allowed); 1 if absent.
        decay: the gate itself, signed, in [-1, 1]; instead of `g`.
        scale, initial_state, output_final_state, cu_seqlens, backend: as in `delta_rule`.

    Returns:
        o [B, T, H, V] in the type of `v`, and the final state in float32 (float64 if any input
        is) or None.
    """
    return run_recurrence(
        "gated_linear_attention",
        _IMPLEMENTATIONS,
        q,
        k,
        v,
        None,
        g,
        decay,
        channel_gates=True,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )
