"""The limits of flash-linear-attention's kernels, known without importing that package."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from statetrack.kernels.operators import needs_gradients

HALF = (torch.bfloat16, torch.float16)
SHORT = 64
"""The longest sequences for which fla's layers prefer a loop over tokens to chunks."""
LEAST_HEAD, MOST_KEY = 16, 256
"""The least size of keys and values, the greatest of keys."""


def unfit_fla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    bounds: list[int] | None,
    log_gate: bool,
) -> dict[str, str]:
    """Return why fla cannot serve a call whose tensors are on a GPU, as `choose` takes it."""
    K, V = q.shape[-1], v.shape[-1]
    halves = {x.dtype for x in (q, k, v)}.intersection(HALF)
    reason = None
    if not halves:
        reason = "it computes in half precision, and none of q, k and v is bfloat16 or float16"
    elif len(halves) > 1:
        reason = "q, k and v mix bfloat16 and float16"
    elif min(K, V) < LEAST_HEAD or K > MOST_KEY:
        sizes = f"keys of {LEAST_HEAD} to {MOST_KEY} channels and values of at least {LEAST_HEAD}"
        reason = f"it needs {sizes}; got {K} and {V}"
    elif (
        gate is not None
        and gate.dim() == 4
        and not log_gate
        and max(lengths_of(q, bounds)) > SHORT
        and needs_gradients([gate])
    ):
        reason = (
            f"beyond {SHORT} tokens its gradient of signed gates on channels, which it computes "
            "in TF32 and divides by the gate, is wrong near 0"
        )
    return {} if reason is None else {"fla": reason}


def lengths_of(q: Tensor, bounds: list[int] | None) -> list[int]:
    """Return the lengths of the sequences in q, which packed ones have by their bounds."""
    return [q.shape[1]] if bounds is None else [b - a for a, b in pairwise(bounds)]
