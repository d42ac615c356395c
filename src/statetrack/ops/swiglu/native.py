"""SwiGLU on the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer
from statetrack.kernels.operators import differentiable, operator
from statetrack.ops.swiglu.naive import swiglu_naive

SwiGLU = STRUCTURES["SwiGLU"]


def _arguments(x: Tensor) -> ctypes.Structure:
    size = x.shape[-1] // 2
    rows = x.numel() // (2 * size)
    return SwiGLU(x=pointer(x), rows=rows, size=size, threads=torch.get_num_threads())


def _forward(x: Tensor) -> Tensor:
    x = x.contiguous()
    y = _fake_forward(x)
    arguments = _arguments(x)
    arguments.y = y.data_ptr()
    call("swiglu_forward", arguments)
    return y


def _fake_forward(x: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


def _backward(dy: Tensor, x: Tensor) -> Tensor:
    dy, x = dy.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    arguments = _arguments(x)
    arguments.dy, arguments.dx = pointer(dy), pointer(dx)
    call("swiglu_backward", arguments)
    return dx


def _fake_backward(dy: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _gradients(grads: Sequence[Any], inputs: Sequence[Any], _: Any) -> tuple[Tensor]:
    return (torch.ops.statetrack.swiglu_backward(*grads, *inputs),)


_swiglu = operator("swiglu(Tensor x) -> Tensor", _forward, _fake_forward)
operator("swiglu_backward(Tensor dy, Tensor x) -> Tensor", _backward, _fake_backward)
differentiable("swiglu", _gradients, swiglu_naive)


def swiglu_native(x: Tensor) -> Tensor:
    """See swiglu_naive; x in float32."""
    return _swiglu(x)
