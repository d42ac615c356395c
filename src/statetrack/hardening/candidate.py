"""Candidates: models with one layer rounded, and how they compare with the trained model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from statetrack.models import SequenceModel
from statetrack.ops import cross_entropy
from statetrack.tasks import IGNORE, Batch

MAX_LOSS_INCREASE = 0.003  # nats; a model with a larger increase is worse than the trained one
SLOW = 0.9  # a modulus between this and 1 decays too slowly to show at the training lengths

NOT_NEEDED = "it is not needed"


@dataclass(frozen=True)
class Component:
    """The outcome for one head or channel: made exact, left as it was, or its memory removed."""

    name: str
    # by how much an inner product of its keys, an entry of a product, or a gate was rounded
    error: float | None = None
    reason: str | None = None  # why it was not made exact
    memory_removed: bool = False


@dataclass(frozen=True)
class Candidate:
    """A model, in float64, with one layer rounded."""

    model: SequenceModel
    settings: dict[str, Any]
    components: tuple[Component, ...]
    # channels or Householder factors that decay slowly, and all that are not exact
    inexact: tuple[int, int] = (0, 0)
    memoryless: bool = False
    keep_only: Callable[[frozenset[str]], Candidate | None] = lambda names: None
    """Returns the candidate with the memory of all other exact heads removed; None if the inputs
    are linearly dependent, so that no weights do that."""
    larger_eps: Callable[[], Iterator[Candidate]] = lambda: iter(())
    """Yields the same with a larger epsilon of the head norm, which amplifies rounding errors less;
    the largest first."""

    @property
    def exact_heads(self) -> frozenset[str]:
        """The names of the heads or channels that are exact."""
        return frozenset(c.name for c in self.components if c.error is not None)

    def simpler(self) -> Iterator[Candidate]:
        """Yield the same with the memory of one more head removed, the least exact first."""
        return filter(None, map(self.without, self.least_exact_first))

    @property
    def least_exact_first(self) -> list[str]:
        """The names of the exact heads or channels, those that were rounded the most first."""
        exact = (c for c in self.components if c.error is not None)
        return [c.name for c in sorted(exact, key=lambda c: -(c.error or 0.0))]

    def without(self, name: str) -> Candidate | None:
        """Return the same without the memory of a head, unless it is the last one."""
        others = self.exact_heads - {name}
        return self.keep_only(others) if others else None

    @property
    def rotates_about_center(self) -> bool:
        """Whether tokens write, so that the state rotates about a point other than 0.

        Keys are a little shorter than 1, so over long sequences the state approaches that point.
        """
        return self.settings.get("writes") == "center"


class Judged(NamedTuple):
    """A candidate in the trained model's dtype, on sequences of the training lengths."""

    candidate: Candidate
    loss: float
    wrong: int  # answers
    good: bool  # as good as the trained model

    @property
    def exact(self) -> bool:
        """Whether all heads and channels are exact, and no answer is wrong."""
        return self.good and not self.wrong and self.candidate.inexact == (0, 0)


class Judge:
    """Compare candidates with the trained model, on sequences of the training lengths."""

    def __init__(self, model: SequenceModel, batch: Batch) -> None:
        self.batch = batch
        self.dtype = next(model.parameters()).dtype
        self.loss, self.wrong = _score(model, batch)
        self.scored = int((batch.targets != IGNORE).sum())

    def rounded(self, model: SequenceModel) -> SequenceModel:
        """Return a copy of a float64 model, converted to the trained model's dtype."""
        return copy.deepcopy(model).to(self.dtype)

    def judge(self, candidate: Candidate) -> Judged:
        """Measure a candidate's loss and mistakes."""
        loss, wrong = _score(self.rounded(candidate.model), self.batch)
        good = loss <= self.loss + MAX_LOSS_INCREASE and wrong <= self.wrong
        return Judged(candidate, loss, wrong, good)

    def simplest(self, judged: Judged) -> Judged:
        """Remove the memory of heads, the least exact first, while the candidate stays good."""
        for name in judged.candidate.least_exact_first:
            made = judged.candidate.without(name)
            simpler = made and self.judge(made)
            if simpler and simpler.good:
                judged = simpler
        return judged


def _score(model: SequenceModel, batch: Batch) -> tuple[float, int]:
    """Return the mean cross-entropy of a batch and the number of wrong answers."""
    logits, _ = model(torch.from_numpy(batch.tokens))
    targets = torch.from_numpy(batch.targets).flatten()
    logits, scored = logits.flatten(0, 1), targets != IGNORE
    wrong = (logits.argmax(-1) != targets)[scored].sum()
    return float(cross_entropy(logits, targets, ignore_index=IGNORE)), int(wrong)
