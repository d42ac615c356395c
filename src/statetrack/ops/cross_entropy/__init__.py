"""The cross-entropy of next tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.backends import choose, compute_dtype
from statetrack.ops.cross_entropy.naive import cross_entropy_naive
from statetrack.ops.cross_entropy.native import cross_entropy_native

_IMPLEMENTATIONS = {"naive": cross_entropy_naive, "native": cross_entropy_native}


def cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, backend: str = "auto"
) -> Tensor:
    """Mean of -log softmax(logits)[target] over the targets that are not `ignore_index`.

    Args:
        logits: [M, V].
        targets: [M] int64.
        ignore_index: the target of rows that do not count; a mean over no rows is NaN.
        backend: "auto", "naive" (plain torch) or "native" (C++ kernels for CPUs).

    Returns:
        One number, in float32 (float64 if the logits are).
    """
    if logits.dim() != 2 or 0 in logits.shape or not logits.is_floating_point():
        got = f"{list(logits.shape)} of {logits.dtype}"
        wanted = "a floating-point [M, V], none of them 0"
        raise UserError(f"cross_entropy: logits must be {wanted}; got {got}")
    if targets.shape != logits.shape[:1] or targets.dtype != torch.int64:
        got = f"{list(targets.shape)} of {targets.dtype}"
        wanted = f"[M] = [{logits.shape[0]}] of int64"
        raise UserError(f"cross_entropy: targets must be {wanted}; got {got}")
    run = _IMPLEMENTATIONS[choose("cross_entropy", backend, tuple(_IMPLEMENTATIONS), logits)]
    return run(logits.to(compute_dtype(logits)), targets, ignore_index)
