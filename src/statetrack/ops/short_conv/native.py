"""The short convolution on the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.interface import CONSTANTS, STRUCTURES
from statetrack.kernels.library import call, pointer
from statetrack.kernels.operators import differentiable, operator
from statetrack.ops.short_conv.naive import short_conv_naive

MAX_WIDTH = CONSTANTS["MAX_WIDTH"]


Part = STRUCTURES["Part"]


ShortConv = STRUCTURES["ShortConv"]


def _run(
    name: str,
    inputs: tuple[Any, ...],
    parts: dict[str, list[Tensor]],
    **others: Tensor | None,
) -> None:
    """Call a kernel; slices of a fused projection are taken as they are."""
    x, weight, *rest, sizes, head_sizes, silu, eps = inputs
    x = x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()
    weight = weight.contiguous()
    bias, window, lengths = (None if t is None else t.contiguous() for t in rest)
    table = (Part * len(sizes))()
    for row, size, head in zip(table, sizes, head_sizes, strict=True):
        row.size, row.head = size, head
    for field, tensors in parts.items():
        for row, tensor in zip(table, tensors, strict=True):
            setattr(row, field, pointer(tensor))
    arguments = ShortConv(
        x=pointer(x),
        row=x.stride(0),
        token=x.stride(1),
        weight=pointer(weight),
        bias=pointer(bias),
        window=pointer(window),
        lengths=pointer(lengths),
        parts=ctypes.addressof(table),
        **{field: pointer(tensor) for field, tensor in others.items()},
        B=x.shape[0],
        T=x.shape[1],
        D=x.shape[2],
        W=weight.shape[1],
        num_parts=len(sizes),
        silu=silu,
        eps=eps,
        threads=torch.get_num_threads(),
    )
    call(name, arguments)


def _forward(*inputs: Any) -> tuple[list[Tensor], Tensor]:
    parts, final = _fake_forward(*inputs)
    _run("short_conv_forward", inputs, {"y": parts}, final=final)
    return parts, final


def _fake_forward(*inputs: Any) -> tuple[list[Tensor], Tensor]:
    x, weight, _, _, _, sizes, *_ = inputs
    parts = [x.new_empty(*x.shape[:2], size) for size in sizes]
    return parts, x.new_empty(x.shape[0], weight.shape[1] - 1, x.shape[2])


def _backward(
    d_parts: list[Tensor], d_final: Tensor | None, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = _fake_backward(d_parts, d_final, *inputs)
    d_parts = [d.contiguous() for d in d_parts]
    d_final = None if d_final is None else d_final.contiguous()
    names = "dx", "dweight", "dbias", "d_window"
    others = dict(zip(names, grads, strict=True), d_final=d_final)
    _run("short_conv_backward", inputs, {"dy": d_parts}, **others)
    return grads


def _fake_backward(
    d_parts: list[Tensor], d_final: Tensor | None, x: Tensor, weight: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, _, channels = x.shape
    d_window = x.new_empty(batch, weight.shape[1] - 1, channels)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), x.new_empty(channels), d_window


def _gradients(grads: Sequence[Any], inputs: Sequence[Any], _: Any) -> tuple[Tensor, ...]:
    x, sizes = inputs[0], inputs[5]
    d_parts, d_final = grads
    given = [
        x.new_zeros(*x.shape[:2], size) if d is None else d
        for d, size in zip(d_parts, sizes, strict=True)
    ]
    return torch.ops.statetrack.short_conv_backward(given, d_final, *inputs)


INPUTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor? window, Tensor? lengths, int[] sizes, "
    "int[] head_sizes, bool silu, float eps"
)
_short_conv = operator(f"short_conv({INPUTS}) -> (Tensor[], Tensor)", _forward, _fake_forward)
operator(
    f"short_conv_backward(Tensor[] d_parts, Tensor? d_final, {INPUTS}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)
differentiable("short_conv", _gradients, short_conv_naive)


def short_conv_native(*inputs: Any) -> tuple[list[Tensor], Tensor]:
    """The arguments of short_conv_naive; everything in float32 but the int64 lengths."""
    return _short_conv(*inputs)
