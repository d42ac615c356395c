"""The ops with a matrix-valued state on the kernels of flash-linear-attention (fla), for GPUs.

fla multiplies in bfloat16 or float16 and takes the logarithm of a gate. Therefore:

- It serves calls in which q, k or v has half precision, as under autocast; those of the three that
  are wider are rounded to it. Where keys are, beta is multiplied by |k|^2 / |rounded k|^2: so
  1 - beta |k|^2 stays what it was, and a reflection does not become an expansion.
- Signed gates are folded into the other inputs. Let s_t be the product of the signs up to token t
  and S_t = s_t R_t. Then R follows the recurrence with |a_t| for a_t and
      s_t v_t for v_t, with o_t = s_t R_t^T q_t,    for one gate a head,
      s_t k_t for k_t and s_t q_t for q_t,          for a gate on each channel.
- Gates must not be 0, since differences of their logarithms are taken: see LEAST_LOG, LEAST_GATE.
"""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.errors import UserError
from statetrack.kernels.operators import needs_gradients
from statetrack.ops.recurrence.fla_limits import HALF, SHORT, lengths_of

LEAST_LOG = -40.0
"""The least logarithm of a gate. What e^-40 leaves of a state is below the rounding of float32; a
smaller one would take bits from the gates of a chunk, which fla gets as differences of sums."""
LEAST_GATE = 2.0**-14
"""The least |a| of a signed gate with a gradient, which is da = dg / a for g = log |a|.

dg has errors of about 1e-7 of the terms of its chunk. Here they are half a percent of da, and what
the gate leaves of a state is below the rounding of both half precisions.
"""


@cache
def kernels() -> Any:
    """Return fla's functions; imported when they are first needed, which takes seconds."""
    from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
    from fla.ops.gated_delta_product import chunk_gated_delta_product
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.gla import chunk_gla, fused_recurrent_gla
    from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

    return SimpleNamespace(
        chunk_delta_rule=chunk_delta_rule,
        chunk_gated_delta_product=chunk_gated_delta_product,
        chunk_gated_delta_rule=chunk_gated_delta_rule,
        chunk_gla=chunk_gla,
        chunk_simple_gla=chunk_simple_gla,
        fused_recurrent_delta_rule=fused_recurrent_delta_rule,
        fused_recurrent_gated_delta_rule=fused_recurrent_gated_delta_rule,
        fused_recurrent_gla=fused_recurrent_gla,
        fused_recurrent_simple_gla=fused_recurrent_simple_gla,
    )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def recurrence_fla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    initial: Tensor | None,
    bounds: list[int] | None,
    scale: float,
    factors: int,
    log_gate: bool,
    output_final_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """o [B, T, H, V] and, if wanted, the final state [N, H, K, V] in float32.

    The inputs are those of `recurrence_native`, except for `bounds`: where packed sequences begin
    and end, as a list.
    """
    training = needs_gradients([q, k, v, beta, gate, initial])
    K, V = q.shape[-1], v.shape[-1]
    dtype = next((x.dtype for x in (q, k, v) if x.dtype in HALF), torch.float32)
    if scale <= 0:  # one of fla's functions wants a positive one
        q, scale = q.float() * scale, 1.0
    if beta is not None:
        beta = beta.float() * _rounding_of_lengths(k, dtype)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    initial = None if initial is None else initial.float()

    outer = after = None  # factors of the output and of the final state
    if gate is not None and log_gate:
        gate = gate.float().clamp(min=LEAST_LOG)
    elif gate is not None:
        gate, signs = _log_and_signs(gate.float())
        before, after = _signs_at_bounds(signs, bounds)
        if initial is not None and before is not None:
            initial = _on_rows(before, initial)
        signs = signs.to(dtype)
        if gate.dim() == 4:
            q, k = q * signs, k * signs
        else:
            outer = signs[..., None]
            v = v * outer.repeat_interleave(factors, 1)

    if K % 2 or V % 2:  # fla refuses odd sizes: Triton reads past the end of their rows
        q, k, v = _pad(q, K), _pad(k, K), _pad(v, V)
        gate = _pad(gate, K) if gate is not None and gate.dim() == 4 else gate
        initial = None if initial is None else F.pad(initial, (0, V % 2, 0, K % 2))
    options: dict[str, Any] = {
        "scale": scale,
        "initial_state": initial,
        "output_final_state": output_final_state,
        "cu_seqlens": None if bounds is None else torch.tensor(bounds, device=q.device),
    }
    short = max(lengths_of(q, bounds)) <= SHORT
    if beta is None:
        o, final = _attention(q, k, v, gate, options, short, training)
    else:
        o, final = _delta(q, k, v, beta, gate, options, short, training, factors)

    o = o[..., :V] if outer is None else o[..., :V] * outer
    if final is not None:
        final = final[..., :K, :V]
        final = final if after is None else _on_rows(after, final)
    for y in (o, final):
        if y is not None and y.requires_grad:
            y.register_hook(_refuse_second_order)
    return o, final


def _delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    options: dict[str, Any],
    short: bool,
    training: bool,
    n: int,
) -> tuple[Tensor, Tensor | None]:
    fla = kernels()
    if n == 1 and g is None and not short:
        return fla.chunk_delta_rule(q, k, v, beta, **options)
    if n == 1 and g is None:
        if training and options["initial_state"] is not None:
            options = options | {"initial_state": _with_gradient(options["initial_state"])}
        return fla.fused_recurrent_delta_rule(q, k, v, beta, **options)
    if short and not training:  # it has no backward pass
        return _expanded(fla.fused_recurrent_gated_delta_rule, q, k, v, beta, g, options, n)
    if n == 1:
        return fla.chunk_gated_delta_rule(q, k, v, g, beta, **options)
    return fla.chunk_gated_delta_product(q, k, v, g, beta, num_householder=n, **options)


def _expanded(
    rule: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    options: dict[str, Any],
    n: int,
) -> tuple[Tensor, Tensor | None]:
    """A token as n steps, of which only the first has a gate and only the last is read."""
    if n > 1:
        q = F.pad(q[:, :, None], (0, 0, 0, 0, n - 1, 0)).flatten(1, 2)
        g = None if g is None else F.pad(g[:, :, None], (0, 0, 0, n - 1)).flatten(1, 2)
        if options["cu_seqlens"] is not None:
            options = options | {"cu_seqlens": n * options["cu_seqlens"]}
    o, final = rule(q, k, v, g, beta=beta, **options)
    return o[:, n - 1 :: n], final


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    options: dict[str, Any],
    short: bool,
    training: bool,
) -> tuple[Tensor, Tensor | None]:
    fla = kernels()
    if g is not None and g.dim() == 4:
        rule = fla.fused_recurrent_gla if short else fla.chunk_gla
    else:
        rule = fla.fused_recurrent_simple_gla if short and not training else fla.chunk_simple_gla
    return rule(q, k, v, g, **options)


def _refuse_second_order(grad: Tensor) -> None:
    """Raise in a backward pass that is to be differentiated: fla's gradients are constants then."""
    if torch.is_grad_enabled():
        raise UserError('the backend fla has no gradients of gradients; use backend="torch"')


def _rounding_of_lengths(k: Tensor, dtype: torch.dtype) -> Tensor | float:
    """|k|^2 / |k rounded to dtype|^2 [B, T, H], a constant for autograd."""
    if k.dtype is dtype:
        return 1.0
    with torch.no_grad():
        exact, rounded = k.float().square().sum(-1), k.to(dtype).float().square().sum(-1)
        return torch.where(rounded > 0, exact / rounded, 1.0)


def _log_and_signs(a: Tensor) -> tuple[Tensor, Tensor]:
    """log |a|, bounded from below, and the running product of signs, both like a [B, T, ...].

    The bound has the gradient of the identity: o is affine in each gate, so its derivative by a
    gate is the same at 0 as at the least gate.
    """
    least = LEAST_GATE if needs_gradients([a]) else math.exp(LEAST_LOG)
    with torch.no_grad():
        nearest = torch.copysign(a.abs().clamp(min=least), a)
        odd = (nearest < 0).cumsum(1, dtype=torch.int32) & 1
    a = a + (nearest - a).detach()
    return a.abs().log(), 1.0 - 2.0 * odd


def _signs_at_bounds(signs: Tensor, bounds: list[int] | None) -> tuple[Tensor | None, Tensor]:
    """The signs before and at the end of each sequence [N, H, ...]; None if all are 1.

    The running product goes on from one packed sequence to the next.
    """
    if bounds is None:
        return None, signs[:, -1]
    ends = signs[0, [end - 1 for end in bounds[1:]]]
    return torch.cat([torch.ones_like(ends[:1]), ends[:-1]]), ends


def _on_rows(signs: Tensor, state: Tensor) -> Tensor:
    """signs [N, H] or [N, H, K] times a state [N, H, K, V]."""
    return signs.view(*signs.shape, *[1] * (4 - signs.dim())) * state


def _pad(x: Tensor, size: int) -> Tensor:
    return F.pad(x, (0, 1)) if size % 2 else x


def _with_gradient(state: Tensor) -> Tensor:
    """A state that requires a gradient: fla's loop writes one if there is a state."""
    return state if state.requires_grad else state.detach().requires_grad_()
