"""What a step minimises: the loss and the saturation penalty of a batch, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statetrack.models import SequenceModel, chunk_cross_entropy
from statetrack.tasks import IGNORE
from statetrack.training.optim import recorded_betas, saturation_penalty


class Objective:
    """The objective of a batch, whose parts `chunked_backward` adds up.

    Args:
        model: the model.
        targets: [B, T], IGNORE where there is none.
        real: [B, T] bool, the tokens that are no padding.
        weight: of the saturation penalty.
        autocast: what surrounds the model.

    Attributes:
        loss: the mean cross-entropy of the chunks so far.
        penalty: their saturation penalty, weighted.
        right: [B, T] bool, whether the likeliest token is the target.
    """

    def __init__(
        self,
        model: SequenceModel,
        targets: Tensor,
        real: Tensor,
        weight: float,
        autocast: torch.autocast,
    ) -> None:
        self.model, self.targets, self.real = model, targets, real
        self.weight, self.autocast = weight, autocast
        self.real_tokens = int(real.sum())
        self.cross_entropy = chunk_cross_entropy(targets, IGNORE)
        self.betas: list[tuple[Tensor, float]] = []
        self.loss = self.penalty = 0.0
        self.right = np.zeros(targets.shape, dtype=bool)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the betas that the penalty is on."""
        with recorded_betas(self.model) as self.betas:
            yield

    def run(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Run the model on a chunk."""
        self.betas.clear()
        with self.autocast:
            return self.model(tokens, state)

    def part(self, logits: Tensor, columns: slice) -> Tensor:
        """Return the objective of a chunk that the model has just read."""
        loss = self.cross_entropy(logits, columns)
        self.loss += float(loss.detach())
        self.right[:, columns] = (logits.argmax(-1) == self.targets[:, columns]).cpu().numpy()
        real = self.real[:, columns]
        if not (self.weight and self.betas and real.any()):
            return loss
        share = int(real.sum()) / self.real_tokens
        penalty = self.weight * share * saturation_penalty(self.betas, real)
        self.penalty += float(penalty.detach())
        return loss + penalty
