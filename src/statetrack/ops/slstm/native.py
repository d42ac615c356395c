"""sLSTM's recurrence on the native kernels, as torch operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.interface import CONSTANTS, STRUCTURES
from statetrack.kernels.library import call, pointer, view, viewable
from statetrack.kernels.operators import differentiable, needs_gradients, operator
from statetrack.ops.slstm.naive import slstm_naive

KEPT = CONSTANTS["SLSTM_KEPT"]  # numbers per feature and token that the backward pass reads


SLSTM = STRUCTURES["SLSTM"]


def _run(
    name: str,
    x: Tensor,
    R: Tensor,
    initial: Tensor,
    lengths: Tensor | None,
    **others: Tensor | None,
) -> None:
    """Call a kernel; x is taken as it is where its rows have one stride."""
    batch, length, heads, _, size = x.shape
    rows = viewable(x.flatten(3))
    R, initial = R.contiguous(), initial.contiguous()
    arguments = SLSTM(
        x=view(rows),
        R=pointer(R),
        initial=pointer(initial),
        lengths=pointer(lengths),
        **{field: pointer(tensor) for field, tensor in others.items()},
        B=batch,
        T=length,
        H=heads,
        D=size,
        threads=torch.get_num_threads(),
    )
    call(name, arguments)


def _forward(
    x: Tensor, R: Tensor, initial: Tensor, lengths: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    out, final, kept = _fake_forward(x, R, initial, lengths, keep)
    others = {"out": out, "final": final, "kept": kept if keep else None}
    _run("slstm_forward", x, R, initial, lengths, **others)
    return out, final, kept


def _fake_forward(
    x: Tensor, R: Tensor, initial: Tensor, lengths: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, heads, _, size = x.shape
    out = x.new_empty(batch, length, heads, size)
    final = initial.new_empty(initial.shape)
    kept = x.new_empty((batch * length * heads, KEPT, size) if keep else (0,))
    return out, final, kept


def _backward(
    d_out: Tensor, d_final: Tensor | None, out: Tensor, final: Tensor, kept: Tensor, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dR, d_initial = _fake_backward(d_out, d_final, out, final, kept, *inputs)
    _run(
        "slstm_backward",
        *inputs,
        out=out,
        final=final,
        kept=kept,
        d_out=d_out.contiguous(),
        d_final=None if d_final is None else d_final.contiguous(),
        dx=dx,
        dR=dR,
        d_initial=d_initial,
    )
    return dx, dR, d_initial


def _fake_backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, x, R, initial, _ = inputs  # as of _backward
    batch, length, heads, gates, size = x.shape
    dx = x.new_empty(heads, batch, length, gates, size).permute(1, 2, 0, 3, 4)
    return dx, R.new_empty(R.shape), initial.new_empty(initial.shape)


def _gradients(
    grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    d_out, d_final, _ = grads
    *tensors, keep = inputs
    if not keep:
        raise RuntimeError("the native sLSTM was told not to keep what its gradients need")
    if d_out is None:
        d_out = torch.zeros_like(outputs[0])
    return torch.ops.statetrack.slstm_backward(d_out, d_final, *outputs, *tensors)


def _definition(*inputs: Any) -> tuple[Tensor, Tensor]:
    return slstm_naive(*inputs[:-1])


_INPUTS = "Tensor x, Tensor R, Tensor initial, Tensor? lengths"
operator(f"slstm({_INPUTS}, bool keep) -> (Tensor, Tensor, Tensor)", _forward, _fake_forward)
operator(
    "slstm_backward(Tensor d_out, Tensor? d_final, Tensor out, Tensor final, Tensor kept, "
    f"{_INPUTS}) -> (Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)
differentiable("slstm", _gradients, _definition, reads=[0, 1, 2])


def slstm_native(
    x: Tensor, R: Tensor, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See slstm_naive; everything in float32 but the int64 lengths."""
    keep = needs_gradients((x, R, state))
    out, final, _ = torch.ops.statetrack.slstm(x, R, state, lengths, keep)
    return out, final
