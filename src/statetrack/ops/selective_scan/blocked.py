"""The selective scan in plain torch, on the blocked scan of ops/linear_scan/blocked.py."""

from __future__ import annotations

import torch
from torch import Tensor

from statetrack.ops.linear_scan import linear_scan
from statetrack.ops.selective_scan.naive import transition

# Working tensors are [B, T, D, N]: longer sequences go segment by segment, which bounds memory
# where no gradients are wanted (those need every segment's states).
MAX_ELEMENTS = 1 << 24


def selective_scan_blocked(
    u: Tensor, delta: Tensor, B: Tensor, C: Tensor, state: Tensor, *, A: Tensor, negative: bool
) -> tuple[Tensor, Tensor]:
    """Same arguments and results as `selective_scan_naive`."""
    length = u.shape[1]
    segment = max(1, MAX_ELEMENTS // max(1, state.numel()))
    outputs = []
    for start in range(0, length, segment):
        part = slice(start, start + segment)
        a = transition(delta[:, part], A, negative)  # [B, T, D, N]
        b = (delta[:, part] * u[:, part])[..., None] * B[:, part, None, :]
        h = linear_scan(a, b, state, backend="torch")
        outputs.append((h @ C[:, part, :, None])[..., 0])
        state = h[:, -1]
    return torch.cat(outputs, 1), state
