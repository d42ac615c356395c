"""Our recurrences and convolution with the signatures of transformers' functions.

They return the same, with gradients. The functions for one token write the cache in place, as
theirs do; without gradients they use the kernels for single steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops import (
    delta_rule,
    delta_rule_step,
    gated_linear_attention,
    gated_linear_attention_step,
    selective_scan,
    selective_scan_step,
    short_conv,
)
from statetrack.ops.l2_norm import l2_normalize

ACTIVATIONS = ("silu", "swish")


def _refuse_packed(options: dict[str, Any]) -> None:
    """As transformers' own functions in plain torch do."""
    if options.get("cu_seqlens") is not None or options.get("seq_idx") is not None:
        raise UserError(
            "native kernels of transformers' models take no packed sequences: give a padded batch"
        )


# -- the short convolution --------------------------------------------------------------------


def causal_conv(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **options: Any,
) -> Tensor:
    """[B, D, T] -> the same; weight [D, W]."""
    _refuse_packed(options)
    (y,), _ = short_conv(hidden_states.mT, weight, bias, silu=activation is not None)
    return y.mT


def causal_conv_update(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """One token [B, D, 1]; conv_state [B, D, W], the last W tokens, is updated."""
    window = torch.cat([conv_state[..., 1:], hidden_states], -1).to(weight.dtype)
    conv_state.copy_(window)
    y = (window * weight).sum(-1, keepdim=True)
    if bias is not None:
        y = y + bias[:, None]
    if activation is not None:
        y = F.silu(y)
    return y.to(hidden_states.dtype)


# -- Mamba ------------------------------------------------------------------------------------


def mamba_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor | None]:
    """hidden_states, dt, z [B, D, T], A [D, N], B, C [B, N, T] -> [B, D, T], state [B, D, N]."""
    _refuse_packed(options)
    y, state = selective_scan(
        hidden_states.mT,
        _step_size(dt.mT, delta_bias, delta_softplus),
        A,
        B.mT,
        C.mT,
        D,
        None if z is None else z.mT,
        output_final_state=return_last_state,
    )
    return (y.mT, state) if return_last_state else y.mT


def mamba_step(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """hidden_states, dt, z [B, D], B, C [B, N] -> [B, D]; state [B, D, N] is updated."""
    _refuse_packed(options)
    delta = _step_size(dt, dt_bias, dt_softplus)
    if not torch.is_grad_enabled():
        return selective_scan_step(state, hidden_states, delta, A, B, C, D, z)
    u, delta, B, C = (x[:, None] for x in (hidden_states, delta, B, C))
    gate = None if z is None else z[:, None]
    y, after = selective_scan(
        u, delta, A, B, C, D, gate, initial_state=state.clone(), output_final_state=True
    )
    assert after is not None
    state.copy_(after)
    return y[:, 0]


def _step_size(dt: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """dt [..., D], plus its bias and through a softplus where these are given."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    return F.softplus(dt) if softplus else dt


# -- Mamba2 -----------------------------------------------------------------------------------


def mamba2_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """hidden_states [B, T, H, P], dt [B, T, H], A, D [H], B, C [B, T, G, N] -> [B, T, H, P].

    States are [B, H, P, N].
    """
    _refuse_packed(options)
    delta = _step_size(dt, dt_bias, dt_softplus).clamp(*dt_limit).float()
    x = hidden_states.float()
    heads = x.shape[2]
    y, state = gated_linear_attention(
        _for_heads(C, heads),
        _for_heads(B, heads),
        x * delta[..., None],
        delta * A,
        scale=1.0,
        initial_state=None if initial_states is None else initial_states.mT,
        output_final_state=return_final_states,
    )
    if D is not None:
        y = y + D[:, None] * x
    # the cache keeps this layout, [B, H, N, P] in memory, which a step needs
    return y if state is None else (y, state.mT)


def mamba2_step(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """hidden_states, dt, z [B, H, P], A [H, P, N], B, C [B, G, N], D, dt_bias [H, P] -> [B, H, P].

    Numbers of a head are repeated for each of its channels; state [B, H, P, N] is updated.
    """
    _refuse_packed(options)
    bias = None if dt_bias is None else dt_bias[:, 0]
    delta = _step_size(dt[..., 0], bias, dt_softplus).float()
    x = hidden_states.float()
    heads = x.shape[1]
    q, k = _for_heads(C, heads), _for_heads(B, heads)
    v, g = x * delta[..., None], delta * A[:, 0, 0]
    if torch.is_grad_enabled():
        y, after = gated_linear_attention(
            *(part[:, None] for part in (q, k, v, g)),
            scale=1.0,
            initial_state=state.mT.clone(),
            output_final_state=True,
        )
        assert after is not None
        y = y[:, 0]
    else:
        after = state.mT.float().contiguous()
        y = gated_linear_attention_step(after, q, k, v, g, scale=1.0)
    if after.data_ptr() != state.data_ptr():
        state.copy_(after.mT)
    if D is not None:
        y = y + D * x
    if z is not None:
        y = y * F.silu(z)
    return y.to(hidden_states.dtype)


def _for_heads(x: Tensor, heads: int) -> Tensor:
    """[..., G, N] -> [..., H, N]: each group is repeated for H / G heads."""
    groups = x.shape[-2]
    return x.unsqueeze(-2).expand(*x.shape[:-1], heads // groups, x.shape[-1]).flatten(-3, -2)


# -- the gated delta rule ---------------------------------------------------------------------


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """query, key [B, T, H, K], value [B, T, H, V], g, beta [B, T, H] -> [B, T, H, V], state.

    Several heads of values may share one of query and key.
    """
    _refuse_packed(options)
    query, key = _keys(query, key, value, use_qk_l2norm_in_kernel)
    return delta_rule(
        query,
        key,
        value,
        beta,
        g,
        initial_state=initial_state,
        output_final_state=output_final_state,
    )


def _keys(query: Tensor, key: Tensor, value: Tensor, unit: bool) -> Iterator[Tensor]:
    """query and key of unit length if wanted, repeated for the heads of values that share them."""
    shared = value.shape[2] // key.shape[2]
    for x in (query, key):
        x = l2_normalize(x) if unit else x
        yield x if shared == 1 else x.repeat_interleave(shared, 2)


def gated_delta_rule_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """`gated_delta_rule` for T = 1, with its other arguments."""
    if torch.is_grad_enabled() or initial_state is None:
        state = None if initial_state is None else initial_state.clone()
        return gated_delta_rule(query, key, value, g, beta, initial_state=state, **options)
    _refuse_packed(options)
    query, key = _keys(query, key, value, options.get("use_qk_l2norm_in_kernel", False))
    # the step writes into the cache's own tensor, which the layer overwrites with the result
    state = initial_state.float().contiguous()
    o = delta_rule_step(state, query[:, 0], key[:, 0], value[:, 0], beta[:, 0], g[:, 0])
    return o[:, None], state if options.get("output_final_state", False) else None
