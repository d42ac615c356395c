"""The batches of a run as tensors on a device, the next one prepared while a GPU computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.devices import to_device
from statetrack.tasks import Task
from statetrack.training.batches import Batches


class DeviceBatch(NamedTuple):
    """A batch on the device."""

    tokens: Tensor  # [B, T]
    targets: Tensor  # [B, T]
    scored: Tensor  # [B, T] bool: counts for the accuracy
    num_scored: int
    real: tuple[Tensor, ...]  # rows and columns [N] of the tokens that are no padding, if asked for


class DeviceBatches:
    """The batch of every step of a run, counted from 0, on a device.

    Args:
        data: the batches.
        task: says which positions are scored, and which token is padding.
        device: where the tensors are made.
        find_real: whether the tokens that are no padding are listed.
    """

    def __init__(
        self, data: Batches, task: Task, device: torch.device, *, find_real: bool = False
    ) -> None:
        self.data, self.task, self.device, self.find_real = data, task, device, find_real
        self._next: tuple[int, DeviceBatch] | None = None

    def batch(self, step: int) -> DeviceBatch:
        """Return the batch of a step."""
        prepared, self._next = self._next, None
        if prepared is not None and prepared[0] == step:
            return prepared[1]
        return self._make(step)

    def prefetch(self, step: int) -> None:
        """Make a batch now, while a GPU still computes; on the CPU nothing is gained by it."""
        if self.device.type != "cpu":
            self._next = step, self._make(step)

    def forget(self) -> None:
        """Drop the batch that was made ahead: another stage has begun, which has others."""
        self._next = None

    def _make(self, step: int) -> DeviceBatch:
        batch = self.data.batch(step)
        scored = self.task.scored(batch.targets)
        real = (batch.tokens != self.task.pad).nonzero() if self.find_real else ()
        return DeviceBatch(
            self._move(batch.tokens),
            self._move(batch.targets),
            self._move(scored),
            int(scored.sum()),
            tuple(map(self._move, real)),
        )

    def _move(self, values: NDArray[Any]) -> Tensor:
        return to_device(torch.from_numpy(values), self.device)
