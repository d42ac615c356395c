"""Stand-ins for a model, of which it is known when they are right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statetrack.tasks import Task
from statetrack.tasks.base import Ints
from statetrack.training import evaluate


class Fake(nn.Module):
    """Knows the answers, and gives them where `knows(positions)` says so; else a wrong one.

    Its state is what it has read, so it can be called in segments. It keeps a record of that.
    """

    def __init__(self, task: Task, knows: Callable[[Ints], Any]) -> None:
        super().__init__()
        self.task, self.knows = task, knows
        self.read: list[Ints] = []  # the tokens [B, T] of each whole call
        self.calls: list[tuple[int, bool, bool]] = []  # (tokens, training, gradients) of each

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.calls.append((tokens.shape[1], self.training, torch.is_grad_enabled()))
        known = tokens if state is None else torch.cat([state, tokens], 1)
        if state is not None:
            self.read.pop()
        self.read.append(known.numpy())
        right = self.task.dense_targets(known.numpy())
        answers = np.where(self.knows(np.arange(known.shape[1])), right, self.wrong(right))
        logits = F.one_hot(torch.from_numpy(answers), len(self.task.vocab)).float()
        return logits[:, known.shape[1] - tokens.shape[1] :], known

    def wrong(self, right: Ints) -> Ints:
        return (right + 1) % len(self.task.vocab)


class Constant(Fake):
    """Always says the same token."""

    def __init__(self, task: Task, token: int) -> None:
        super().__init__(task, lambda positions: False)
        self.token = token

    def wrong(self, right: Ints) -> Ints:
        return np.full_like(right, self.token)


def perfect(task: Task) -> Fake:
    return Fake(task, lambda positions: True)


def right_up_to(task: Task, length: int) -> Fake:
    return Fake(task, lambda positions: positions < task.input_size(length))


def at_once(tokens: int, monkeypatch: pytest.MonkeyPatch, bound: str = "TOKENS_PER_CALL") -> None:
    """Let an evaluation hold no more than so many tokens in memory."""
    module = sys.modules[evaluate.__module__]  # its name is also that of a function
    monkeypatch.setattr(module, bound, tokens)
