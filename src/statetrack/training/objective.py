"""The objective of a training step: the loss and the saturation penalty of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from statetrack.models import SequenceModel, chunk_cross_entropy
from statetrack.tasks import IGNORE
from statetrack.training.device_batches import DeviceBatch
from statetrack.training.optim import recorded_betas, saturation_penalty


class Objective:
    """The objective of a batch, whose parts `chunked_backward` adds up.

    Args:
        model: the model.
        batch: on the model's device.
        weight: of the saturation penalty; if it is not 0, the batch lists its real tokens.
        autocast: what surrounds the model.

    Attributes:
        loss: the mean cross-entropy of the chunks so far.
        penalty: their saturation penalty, weighted.
        right: how many of their scored positions are right.
    """

    def __init__(
        self,
        model: SequenceModel,
        batch: DeviceBatch,
        weight: float,
        autocast: AbstractContextManager[Any],
    ) -> None:
        self.model, self.batch = model, batch
        self.weight, self.autocast = weight, autocast
        self.cross_entropy = chunk_cross_entropy(batch.targets, IGNORE)
        self.betas: list[tuple[Tensor, float]] = []
        # tensors: reading a number waits for the device
        self.loss = self.penalty = torch.zeros((), device=batch.tokens.device)
        self.right = torch.zeros((), dtype=torch.int64, device=batch.tokens.device)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the betas that the penalty is on."""
        with recorded_betas(self.model, enabled=self.weight > 0) as self.betas:
            yield

    def run(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Run the model on a chunk."""
        self.betas.clear()
        with self.autocast:
            return self.model(tokens, state)

    def chunk_loss(self, logits: Tensor, columns: slice) -> Tensor:
        """Return the objective of a chunk that the model has just read."""
        loss = self.cross_entropy(logits, columns)
        self.loss = self.loss + loss.detach()
        right = logits.detach().argmax(-1) == self.batch.targets[:, columns]
        self.right = self.right + (right & self.batch.scored[:, columns]).sum()
        if not self.betas:
            return loss
        rows, positions = self._real(columns)
        if not len(rows):
            return loss
        share = len(rows) / len(self.batch.real[0])
        penalty = self.weight * share * saturation_penalty(self.betas, (rows, positions))
        self.penalty = self.penalty + penalty.detach()
        return loss + penalty

    def _real(self, columns: slice) -> tuple[Tensor, Tensor]:
        """Return rows and positions, counted from the chunk's first, of its real tokens."""
        rows, positions = self.batch.real
        if columns == slice(0, self.batch.tokens.shape[1]):
            return rows, positions
        here = (positions >= columns.start) & (positions < columns.stop)
        return rows[here], positions[here] - columns.start
