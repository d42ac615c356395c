"""RMSNorm on the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer
from statetrack.kernels.operators import differentiable, operator
from statetrack.ops.rms_norm.naive import rms_norm_naive

RMSNorm = STRUCTURES["RMSNorm"]


def _arguments(x: Tensor, weight: Tensor, eps: float) -> ctypes.Structure:
    size = len(weight)
    return RMSNorm(
        x=pointer(x),
        weight=pointer(weight),
        rows=x.numel() // size,
        size=size,
        eps=eps,
        threads=torch.get_num_threads(),
    )


def _forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    arguments = _arguments(x, weight, eps)
    arguments.y = y.data_ptr()
    call("rms_norm_forward", arguments)
    return y


def _backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dy, x, weight = dy.contiguous(), x.contiguous(), weight.contiguous()
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    arguments = _arguments(x, weight, eps)
    arguments.dy, arguments.dx, arguments.dweight = map(pointer, (dy, dx, dweight))
    call("rms_norm_backward", arguments)
    return dx, dweight


def _empty(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _gradients(grads: Sequence[Any], inputs: Sequence[Any], _: Any) -> tuple[Tensor, Tensor]:
    return torch.ops.statetrack.rms_norm_backward(*grads, *inputs)


_rms_norm = operator(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    _forward,
    lambda x, weight, eps: _empty(x),
)
operator(
    "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    _backward,
    lambda dy, x, weight, eps: (_empty(x), _empty(weight)),
)
differentiable("rms_norm", _gradients, rms_norm_naive)


def rms_norm_native(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See rms_norm_naive; x and weight in float32."""
    return _rms_norm(x, weight, eps)
