"""The ops with a matrix-valued state: the delta rule, its products and gated linear attention.

They are one recurrence, on one native kernel (see `Recurrence` in kernels/interface.h), and on GPUs
on the kernels of flash-linear-attention (fla.py) or on our own (gpu_kernels.py). Each has a form
for a single token, for decoding, which changes its state in place and has no gradients.
"""

from __future__ import annotations

from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.recurrence.chunk_attention import gated_linear_attention_chunk
from statetrack.ops.recurrence.chunk_delta import delta_product_chunk
from statetrack.ops.recurrence.naive import delta_product_naive, gated_linear_attention_naive
from statetrack.ops.recurrence.run import run_recurrence
from statetrack.ops.recurrence.step import run_step

_DELTA = {"naive": delta_product_naive, "torch": delta_product_chunk}
_ATTENTION = {"naive": gated_linear_attention_naive, "torch": gated_linear_attention_chunk}


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
        backend: "auto", "naive" (the defining loop), "torch" (chunkwise), "native" (C++, CPU),
            on GPUs "fla" (flash-linear-attention, where q, k or v has half precision) or "triton"
            (K up to 256).

    Returns:
        o [B, T, H, V] in the type of `v`, and the final state in float32 (float64 if any input
        is) or None.

    >>> import torch
    >>> q, k, v = torch.randn(3, 1, 50, 2, 8)
    >>> k = torch.nn.functional.normalize(k, dim=-1)
    >>> o, _ = delta_rule(q, k, v, 2 * torch.rand(1, 50, 2))
    >>> o.shape
    torch.Size([1, 50, 2, 8])
    """
    tensors = q, k, v, beta, g, decay, initial_state
    options = scale, output_final_state, cu_seqlens, backend
    return run_recurrence("delta_rule", _DELTA, tensors, *options)


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
    tensors = q, k, v, beta, g, decay, initial_state
    options = scale, output_final_state, cu_seqlens, backend
    return run_recurrence("delta_product", _DELTA, tensors, *options, factors=num_householder)


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
    tensors = q, k, v, None, g, decay, initial_state
    options = scale, output_final_state, cu_seqlens, backend
    return run_recurrence("gated_linear_attention", _ATTENTION, tensors, *options, has_beta=False)


def delta_rule_step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """One token of `delta_rule`: update `state` in place and return o.

    Args:
        state: [B, H, K, V], contiguous float32.
        q, k: [B, H, K].
        v: [B, H, V].
        beta: [B, H].
        g, decay: [B, H], as in `delta_rule`.
        scale: as in `delta_rule`.
        backend: "auto", "torch", "native" (CPU) or "triton" (GPU).

    Returns:
        o [B, H, V] in the type of `v`.
    """
    return run_step("delta_rule_step", 1, (state, q, k, v, beta), g, decay, scale, backend)


def delta_product_step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """One token of `delta_product`: update `state` in place and return o.

    Args:
        state: [B, H, K, V], contiguous float32.
        q: [B, H, K].
        k: [B, n, H, K], for n Householder factors.
        v: [B, n, H, V].
        beta: [B, n, H].
        g, decay: [B, H], as in `delta_rule`.
        scale: as in `delta_rule`.
        backend: "auto", "torch", "native" (CPU) or "triton" (GPU).

    Returns:
        o [B, H, V] in the type of `v`.
    """
    if k.dim() != 4 or k.shape[1] < 1:
        raise UserError(f"delta_product_step: k must be [B, n, H, K], n >= 1; got {list(k.shape)}")
    tensors = state, q, k, v, beta
    return run_step("delta_product_step", k.shape[1], tensors, g, decay, scale, backend)


def gated_linear_attention_step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    decay: Tensor | None = None,
    scale: float | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """One token of `gated_linear_attention`: update `state` in place and return o.

    Args:
        state: [B, H, K, V], contiguous float32.
        q, k: [B, H, K].
        v: [B, H, V].
        g, decay: [B, H] or [B, H, K], as in `gated_linear_attention`.
        scale: as in `delta_rule`.
        backend: "auto", "torch", "native" (CPU) or "triton" (GPU).

    Returns:
        o [B, H, V] in the type of `v`.
    """
    tensors = state, q, k, v, None
    return run_step("gated_linear_attention_step", 1, tensors, g, decay, scale, backend)
