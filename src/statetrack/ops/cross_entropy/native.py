"""The cross-entropy on the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.library import call, pointer
from statetrack.kernels.operators import differentiable, operator
from statetrack.ops.cross_entropy.naive import check_targets, cross_entropy_naive

CrossEntropy = STRUCTURES["CrossEntropy"]


def _arguments(
    logits: Tensor, targets: Tensor, count: Tensor, ignore_index: int
) -> ctypes.Structure:
    return CrossEntropy(
        logits=pointer(logits),
        targets=pointer(targets),
        count=pointer(count),
        rows=len(logits),
        classes=logits.shape[1],
        ignore=ignore_index,
        threads=torch.get_num_threads(),
    )


def _forward(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    check_targets(targets, logits.shape[1], ignore_index)
    logits, targets = logits.contiguous(), targets.contiguous()
    loss, count = _fake_forward(logits, targets, ignore_index)
    arguments = _arguments(logits, targets, count, ignore_index)
    arguments.loss = loss.data_ptr()
    call("cross_entropy_forward", arguments)
    return loss, count


def _fake_forward(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    return logits.new_empty(()), logits.new_empty(())


def _backward(
    d_loss: Tensor, count: Tensor, logits: Tensor, targets: Tensor, ignore_index: int
) -> Tensor:
    logits, targets = logits.contiguous(), targets.contiguous()
    d_logits = torch.empty_like(logits)
    arguments = _arguments(logits, targets, count, ignore_index)
    arguments.d_loss, arguments.d_logits = pointer(d_loss), pointer(d_logits)
    call("cross_entropy_backward", arguments)
    return d_logits


def _fake_backward(
    d_loss: Tensor, count: Tensor, logits: Tensor, targets: Tensor, ignore_index: int
) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _gradients(
    grads: Sequence[Any], inputs: Sequence[Any], kept: Sequence[Tensor]
) -> tuple[Tensor]:
    return (torch.ops.statetrack.cross_entropy_backward(grads[0], *kept, *inputs),)


_cross_entropy = operator(
    "cross_entropy(Tensor logits, Tensor targets, int ignore_index) -> (Tensor, Tensor)",
    _forward,
    _fake_forward,
)
operator(
    "cross_entropy_backward(Tensor d_loss, Tensor count, Tensor logits, Tensor targets, "
    "int ignore_index) -> Tensor",
    _backward,
    _fake_backward,
)
differentiable("cross_entropy", _gradients, cross_entropy_naive, reads=[1])


def cross_entropy_native(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """See cross_entropy_naive; logits in float32."""
    return _cross_entropy(logits, targets, ignore_index)[0]
