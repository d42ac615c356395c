"""Softplus on the native kernels."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer
from statetrack.kernels.operators import function_of_one
from statetrack.ops.softplus.naive import softplus_naive

Softplus = STRUCTURES["Softplus"]


def _arguments(x: Tensor) -> ctypes.Structure:
    return Softplus(x=pointer(x), count=x.numel(), threads=torch.get_num_threads())


def _forward(x: Tensor) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    arguments = _arguments(x)
    arguments.y = y.data_ptr()
    call("softplus_forward", arguments)
    return y


def _backward(dy: Tensor, x: Tensor) -> Tensor:
    dy, x = dy.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    arguments = _arguments(x)
    arguments.dy, arguments.dx = pointer(dy), pointer(dx)
    call("softplus_backward", arguments)
    return dx


def _fake(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_softplus = function_of_one("softplus", _forward, _fake, _backward, softplus_naive)


def softplus_native(x: Tensor) -> Tensor:
    """See softplus_naive; x in float32."""
    return _softplus(x)
