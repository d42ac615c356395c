"""The recurrence of sLSTM, an LSTM with an exponential input gate and a normaliser."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.backends import check_shape, choose, compute_dtype, full_precision
from statetrack.ops.ragged import mask_lengths
from statetrack.ops.slstm.naive import slstm_naive
from statetrack.ops.slstm.native import slstm_native

__all__ = ["SLSTMMemory", "slstm"]

_IMPLEMENTATIONS = {"naive": slstm_naive, "native": slstm_native}


class SLSTMMemory(NamedTuple):
    """The state between two tokens, each part [B, H, D]; all zeros before the first."""

    h: Tensor  # the output, which enters the next token's gates
    c: Tensor  # the cell
    n: Tensor  # its normaliser, positive; 0: nothing has been read yet
    m: Tensor  # c and n are scaled by exp(-m)


def slstm(
    x: Tensor,
    R: Tensor,
    *,
    initial_state: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    output_final_state: bool = False,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, SLSTMMemory | None]:
    """c_t = f c_{t-1} + i tanh(z),  n_t = f n_{t-1} + i,  h_t = sigmoid(o) c_t / n_t.

    The gates' inputs are (i, f, z, o)_t = x_t + R h_{t-1}; then i becomes exp(i) and f sigmoid(f),
    both divided by exp(m_t), m_t = max(log f + m_{t-1}, i), which keeps them within reach of
    floating-point numbers and changes no h. h enters the gates: this is no linear RNN, and every
    backend goes token by token. Gradients flow to every input, to `initial_state` and through the
    final state.

    Args:
        x: [B, T, H, 4, D], what i, f, z and o get from outside, biases included.
        R: [H, 4, D, D], the recurrent weights [head, gate, out, in].
        initial_state: (h, c, n, m), each [B, H, D]; zeros if absent. c and m count only where n is
            not 0.
        output_final_state: whether to return the state after the last token.
        mask: [B, T] bool, False for padding at the right ends: it leaves the state as it is, and
            its output is 0.
        backend: "auto", "naive" (the defining loop) or "native" (C++ kernels for CPUs).

    Returns:
        h [B, T, H, D] in the type of `x`, and the final state in float32 (float64 if any input is)
        or None.
    """
    op = "slstm"
    if x.dim() != 5 or 0 in x.shape:
        raise UserError(f"{op}: x must be [B, T, H, 4, D], none of them 0; got {list(x.shape)}")
    batch, length, heads, _, size = x.shape
    check_shape(op, "x", x, "[B, T, H, 4, D]", (batch, length, heads, 4, size))
    check_shape(op, "R", R, "[H, 4, D, D]", (heads, 4, size, size))
    if initial_state is None:
        initial_state = (x.new_zeros(batch, heads, size, dtype=torch.float32),) * 4
    if len(initial_state) != 4:
        raise UserError(f"{op}: initial_state must be (h, c, n, m); got {len(initial_state)} parts")
    for name, part in zip("hcnm", initial_state, strict=True):
        check_shape(op, f"{name} of the state", part, "[B, H, D]", (batch, heads, size))
    lengths = mask_lengths(op, mask, batch, length)

    tensors = x, R, *initial_state
    run = _IMPLEMENTATIONS[choose(op, backend, tuple(_IMPLEMENTATIONS), *tensors)]
    dtype = compute_dtype(*tensors)
    with full_precision(x):
        state = torch.stack([part.to(dtype) for part in initial_state])
        h, state = run(x.to(dtype), R.to(dtype), state, lengths)
    return h.to(x.dtype), SLSTMMemory(*state.unbind()) if output_final_state else None
