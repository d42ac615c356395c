"""The batches of a run as tensors on a device, the next one prepared while a GPU computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.devices import to_device
from statetrack.tasks import Task
from statetrack.training.batches import Batches

B = TypeVar("B")


class Prefetched(Generic[B]):
    """The batch of every step of a run, counted from 0; the next one can be made ahead.

    Args:
        make: returns the batch of a step, with its tensors on the device.
        device: where the tensors are made.
    """

    def __init__(self, make: Callable[[int], B], device: torch.device) -> None:
        self.make, self.device = make, device
        self._next: tuple[int, B] | None = None

    def batch(self, step: int) -> B:
        """Return the batch of a step."""
        prepared, self._next = self._next, None
        if prepared is not None and prepared[0] == step:
            return prepared[1]
        return self.make(step)

    def prefetch(self, step: int) -> None:
        """Make a batch now, while a GPU still computes; on the CPU nothing is gained by it."""
        if self.device.type != "cpu":
            self._next = step, self.make(step)

    def forget(self) -> None:
        """Drop the batch that was made ahead: another stage has begun, which has others."""
        self._next = None


class DeviceBatch(NamedTuple):
    """A batch on the device."""

    tokens: Tensor  # [B, T]
    targets: Tensor  # [B, T]
    scored: Tensor  # [B, T] bool: counts for the accuracy
    num_scored: int
    real: tuple[Tensor, ...]  # rows and columns [N] of the tokens that are no padding, if asked for


class DeviceBatches(Prefetched[DeviceBatch]):
    """The batches of a task on a device.

    Args:
        data: the batches.
        task: says which positions are scored, and which token is padding.
        device: where the tensors are made.
        find_real: whether the tokens that are no padding are listed.
    """

    def __init__(
        self, data: Batches, task: Task, device: torch.device, *, find_real: bool = False
    ) -> None:
        super().__init__(self._make, device)
        self.data, self.task, self.find_real = data, task, find_real

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
