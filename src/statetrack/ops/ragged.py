"""Convert packed sequences, or rows with a mask, to right-padded batches and back.

Packed sequences (`cu_seqlens`) and rows with any mask both become a table of positions. What
follows gets a plain batch `[N, L, ...]` and a boolean `valid`, False only at the right ends. Linear
recurrences need no mask: at invalid positions their inputs are 0 (keys, values, beta, delta) and
their gates 1, which leaves the state as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from statetrack.devices import to_device
from statetrack.errors import UserError


@dataclass(frozen=True)
class Ragged:
    """How `[B, T]` positions map to a right-padded batch `[N, L]`."""

    index: Tensor  # [N, L] into the flattened B * T positions; arbitrary where not valid
    valid: Tensor  # [N, L] bool
    padded_index: Tensor  # [B, T] into the flattened N * L entries; arbitrary where not present
    present: Tensor | None  # [B, T] bool: in a sequence; None if all are

    @classmethod
    def from_bounds(cls, bounds: list[int], device: torch.device) -> Ragged:
        """Map sequences packed into one row (B = 1); `bounds` comes from `check_cu_seqlens`.

        Sizes are those of the list, so nothing waits for a GPU.
        """
        longest = max(end - start for start, end in pairwise(bounds))
        ends = to_device(torch.tensor(bounds, device="cpu"), device)
        starts, lengths = ends[:-1, None], ends.diff()
        offsets = torch.arange(longest, device=device)[None, :]
        valid = offsets < lengths[:, None]
        shifts = torch.arange(len(lengths), device=device) * longest - ends[:-1]
        padded_index = shifts.repeat_interleave(lengths, output_size=bounds[-1])
        padded_index = (padded_index + torch.arange(bounds[-1], device=device))[None, :]
        return cls((starts + offsets).where(valid, starts), valid, padded_index, None)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Ragged:
        """Map rows [B, T] to their positions with `mask` True, moved to the left; N = B."""
        rows, length = mask.shape
        order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
        count = mask.sum(1, keepdim=True)
        longest = max(1, int(count.max()))
        row = torch.arange(rows, device=mask.device)[:, None]
        offsets = torch.arange(longest, device=mask.device)[None, :]
        padded_index = row * longest + (mask.cumsum(1) - 1).clamp(min=0)
        return cls(row * length + order[:, :longest], offsets < count, padded_index, mask)

    def pad(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [N, L, ...]; invalid positions become 0, even if x is NaN there."""
        valid = self.valid.view(*self.valid.shape, *[1] * (x.dim() - 2))
        return x.flatten(0, 1)[self.index].masked_fill(~valid, 0)

    def unpad(self, y: Tensor) -> Tensor:
        """[N, L, ...] -> [B, T, ...]; positions that are in no sequence become 0."""
        x = y.flatten(0, 1)[self.padded_index]
        if self.present is None:
            return x
        return x.masked_fill(~self.present.view(*x.shape[:2], *[1] * (x.dim() - 2)), 0)


def on_host(cu_seqlens: Tensor | None) -> Tensor | None:
    """Move boundaries to the CPU, once for all layers of a model: each reads their values."""
    return cu_seqlens.cpu() if isinstance(cu_seqlens, Tensor) else cu_seqlens


def check_cu_seqlens(cu_seqlens: Tensor, batch: int, length: int) -> list[int]:
    """Return the boundaries of packed sequences as a list; waits for a GPU if they are there.

    Raises:
        UserError: They do not increase from 0 to `length`, or `batch` is not 1.
    """
    if batch != 1:
        raise UserError(f"cu_seqlens packs sequences into one row: batch must be 1, got {batch}")
    tensor = isinstance(cu_seqlens, Tensor)
    if not tensor or cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point() or len(cu_seqlens) < 2:
        raise UserError("cu_seqlens must be a 1-d tensor of integers [0, end of first, ..., total]")
    bounds: list[int] = cu_seqlens.tolist()
    increasing = all(a < b for a, b in pairwise(bounds))
    if bounds[0] != 0 or bounds[-1] != length or not increasing:
        raise UserError(
            f"cu_seqlens must increase from 0 to the total length {length}; got {bounds}"
        )
    return bounds


def mask_lengths(op: str, mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """Return the number of tokens of each row, [B], from a mask [B, T] that pads right ends only.

    The shape and dtype of the mask are checked, not where its False entries are.
    """
    if mask is None:
        return None
    if mask.shape != (batch, length) or mask.dtype != torch.bool:
        got = f"{list(mask.shape)} of {mask.dtype}"
        raise UserError(f"{op}: mask must be [B, T] = {[batch, length]} of bool; got {got}")
    return mask.sum(1)


def each_sequence(
    run: Callable[..., tuple[Tensor, Tensor]],
    tensors: tuple[Tensor | None, ...],
    state: Tensor,
    bounds: list[int],
) -> tuple[Tensor, Tensor]:
    """Run an op on each packed sequence by itself: the reference for `cu_seqlens`."""
    outputs, states = [], []
    for n, (start, end) in enumerate(pairwise(bounds)):
        parts = (None if x is None else x[:, start:end] for x in tensors)
        o, s = run(*parts, state[n : n + 1])
        outputs.append(o)
        states.append(s)
    return torch.cat(outputs, 1), torch.cat(states, 0)
