"""SwiGLU on the native kernels."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer
from statetrack.kernels.operators import function_of_one
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


_swiglu = function_of_one("swiglu", _forward, _fake_forward, _backward, swiglu_naive)


def swiglu_native(x: Tensor) -> Tensor:
    """See swiglu_naive; x in float32."""
    return _swiglu(x)
