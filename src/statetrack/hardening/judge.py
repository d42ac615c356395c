"""Which exact models are as good as a trained one."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch

from statetrack.hardening.candidate import Candidate
from statetrack.models import SequenceModel
from statetrack.ops import cross_entropy
from statetrack.tasks import IGNORE, Batch

SLACK = 0.003  # nats that an exact model may lose and still be as good


class Tried(NamedTuple):
    """A candidate, as it would be written, on the sequences of the training lengths."""

    candidate: Candidate
    loss: float
    wrong: int  # answers
    good: bool  # as good as the trained model


class Judge:
    """Holds candidates against a trained model."""

    def __init__(self, model: SequenceModel, batch: Batch) -> None:
        self.batch = batch
        self.dtype = next(model.parameters()).dtype
        self.before, self.mistakes = _score(model, batch)
        self.asked = int((batch.targets != IGNORE).sum())

    def rounded(self, model: SequenceModel) -> SequenceModel:
        """A float64 model with numbers of the trained one's type."""
        return copy.deepcopy(model).to(self.dtype)

    def try_(self, candidate: Candidate) -> Tried:
        """Measure a candidate."""
        loss, wrong = _score(self.rounded(candidate.model), self.batch)
        good = loss <= self.before + SLACK and wrong <= self.mistakes
        return Tried(candidate, loss, wrong, good)

    def least(self, tried: Tried) -> Tried:
        """The same, if it is good, with no more parts that remember something than it takes."""
        for fewer in map(self.try_, tried.candidate.fewer()):
            if fewer.good:
                return self.least(fewer)
        return tried


def _score(model: SequenceModel, batch: Batch) -> tuple[float, int]:
    """The mean cross-entropy of a batch, and how many answers are wrong."""
    logits, _ = model(torch.from_numpy(batch.tokens))
    targets = torch.from_numpy(batch.targets).flatten()
    logits, asked = logits.flatten(0, 1), targets != IGNORE
    wrong = (logits.argmax(-1) != targets)[asked].sum()
    return float(cross_entropy(logits, targets, ignore_index=IGNORE)), int(wrong)
