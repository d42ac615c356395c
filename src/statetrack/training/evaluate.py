"""How right a model is, by length."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from statetrack.config import at_least
from statetrack.models import SequenceModel
from statetrack.tasks import IGNORE, Task, generator
from statetrack.tasks.base import Ints

TOKENS_AT_ONCE = 1 << 16  # bounds what the model works on at once, at any length


@dataclass(frozen=True)
class Evaluation:
    """The result on sequences of lengths min_length..max_length."""

    min_length: int
    max_length: int
    samples: int
    metric: str  # which of the accuracies `score` stands for
    score: float  # share of sequences that are right by the task's metric
    low: float  # 95 % confidence interval of the score (Wilson)
    high: float
    scaled: float  # the score with chance at 0
    token_accuracy: float  # over all supervised positions together
    answer_accuracy: float  # at each sequence's last supervised position
    sequence_accuracy: float  # every supervised position of a sequence right

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def evaluate(
    model: SequenceModel,
    task: Task,
    lengths: int | tuple[int, int],
    *,
    samples: int = 1024,
    split: str = "test",
    data_seed: int = 0,
) -> Evaluation:
    """Evaluate on fresh sequences of one length, or of lengths uniform on a range."""
    low, high = (lengths, lengths) if isinstance(lengths, int) else lengths
    task.check_lengths(low, high)
    at_least("samples", samples, 1)
    # keyed by the range as well: the set for one range does not move when another is added
    rng = generator(data_seed, split, low * 1_000_003 + high)
    drawn = np.sort(rng.integers(low, high + 1, samples))  # sorted: little padding in a batch
    right, asked, answers, whole = 0, 0, 0, 0
    per_batch = max(1, TOKENS_AT_ONCE // min(task.input_size(high), 1024))
    for start in range(0, samples, per_batch):
        batch = task.sample(rng, drawn[start : start + per_batch])
        correct = predict(model, batch.tokens) == batch.targets
        supervised = batch.targets != IGNORE
        last = supervised.shape[1] - 1 - np.argmax(supervised[:, ::-1], axis=1)
        right += int((correct & supervised).sum())
        asked += int(supervised.sum())
        answers += int(correct[np.arange(len(last)), last].sum())
        whole += int((correct | ~supervised).all(1).sum())
    count = answers if task.metric == "answer" else whole
    score = count / samples
    chance = 0.0 if task.metric == "sequence" else task.chance  # of a whole sequence: none
    interval = wilson(count, samples)
    return Evaluation(
        min_length=low,
        max_length=high,
        samples=samples,
        metric=task.metric,
        score=score,
        low=interval[0],
        high=interval[1],
        scaled=(score - chance) / (1 - chance),
        token_accuracy=right / asked,
        answer_accuracy=answers / samples,
        sequence_accuracy=whole / samples,
    )


@dataclass(frozen=True)
class Curve:
    """Accuracy against length, from one set of long sequences read prefix by prefix."""

    lengths: Ints
    accuracy: NDArray[np.float64]  # of the answer at that length
    sequence_accuracy: NDArray[np.float64]  # of all answers up to that length together


def curve(
    model: SequenceModel,
    task: Task,
    max_length: int,
    *,
    samples: int = 256,
    split: str = "test",
    data_seed: int = 0,
) -> Curve:
    """Every prefix of a sequence is a shorter sequence: one pass gives all lengths."""
    dense = replace(task, supervision="dense")
    dense.check_lengths(max_length, max_length)
    rng = generator(data_seed, split, max_length)
    correct = []
    per_batch = max(1, TOKENS_AT_ONCE // min(dense.input_size(max_length), 1024))
    for start in range(0, samples, per_batch):
        size = min(per_batch, samples - start)
        batch = dense.sample(rng, np.full(size, max_length))
        correct.append(predict(model, batch.tokens) == batch.targets)
    right = np.concatenate(correct)
    lengths = np.arange(dense.min_length, max_length + 1)
    last = np.array([dense.input_size(int(n)) - 1 for n in lengths])
    whole = np.logical_and.accumulate(right, axis=1)
    return Curve(lengths, right[:, last].mean(0), whole[:, last].mean(0))


@torch.no_grad()
def predict(model: SequenceModel, tokens: Ints) -> Ints:
    """The most likely token at every position of tokens [B, T], in bounded memory."""
    was_training = model.training
    model.eval()
    inputs = torch.from_numpy(tokens)
    size = max(1, TOKENS_AT_ONCE // len(tokens))
    state = None
    out = []
    for start in range(0, tokens.shape[1], size):
        logits, state = model(inputs[:, start : start + size], state)
        out.append(logits.argmax(-1))
    model.train(was_training)
    return torch.cat(out, 1).numpy()


def wilson(right: int, samples: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % confidence interval of a proportion; also sound when all or none are right."""
    p = right / samples
    scale = 1 + z * z / samples
    centre = (p + z * z / (2 * samples)) / scale
    spread = z * math.sqrt(p * (1 - p) / samples + z * z / (4 * samples**2)) / scale
    return max(0.0, centre - spread), min(1.0, centre + spread)
