"""How right a model is, by length: one way for all tasks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from statetrack.config import at_least
from statetrack.models import SequenceModel
from statetrack.tasks import PrefixTask, Task, generator
from statetrack.tasks.base import Ints

TOKENS_AT_ONCE = 1 << 16  # bounds what the model works on at once, at any length
GRID = 40  # lengths of a curve that takes each by itself
RESAMPLES = 1000  # of a bootstrap interval
SOLVED = 0.99  # the accuracy that counts towards a horizon

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """The result on sequences of lengths min_length..max_length."""

    min_length: int
    max_length: int
    samples: int
    metric: str  # which of the accuracies `score` stands for
    score: float
    low: float  # 95 % confidence interval of the score
    high: float
    scaled: float  # the score with chance at 0
    majority: float  # the share of the most frequent answer
    token_accuracy: float  # over all scored positions together
    answer_accuracy: float  # at each sequence's last scored position
    sequence_accuracy: float  # every scored position of a sequence right

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
    """Evaluate on fresh sequences of one length, or of lengths uniform on a range.

    The interval is Wilson's where a sequence is right or wrong. Token accuracy has a bootstrap
    interval over whole sequences, since the positions of one sequence are not independent.
    """
    low, high = (lengths, lengths) if isinstance(lengths, int) else lengths
    task.check_lengths(low, high)
    at_least("samples", samples, 1)
    # keyed by the range as well: the set for one range does not move when another is added
    rng = generator(data_seed, split, low * 1_000_003 + high)
    drawn = np.sort(rng.integers(low, high + 1, samples))  # sorted: little padding in a batch
    right = np.zeros(samples, dtype=np.int64)  # scored positions of each sequence that are right
    asked = np.zeros(samples, dtype=np.int64)
    answers = np.zeros(samples, dtype=bool)
    last_counts = np.zeros(len(task.vocab), dtype=np.int64)
    all_counts = np.zeros(len(task.vocab), dtype=np.int64)
    for part in _batches(samples, task.input_size(high)):
        batch = task.sample(rng, drawn[part])
        correct = predict(model, batch.tokens) == batch.targets
        scored = task.scored(batch.targets)
        last = scored.shape[1] - 1 - np.argmax(scored[:, ::-1], axis=1)
        rows = np.arange(len(last))
        right[part] = (correct & scored).sum(1)
        asked[part] = scored.sum(1)
        answers[part] = correct[rows, last]
        last_counts += np.bincount(batch.targets[rows, last], minlength=len(task.vocab))
        all_counts += np.bincount(batch.targets[scored], minlength=len(task.vocab))
    token_accuracy = right.sum() / asked.sum()
    answer_accuracy = answers.mean()
    sequence_accuracy = (right == asked).mean()
    if task.metric == "token":
        score, (bottom, top) = token_accuracy, bootstrap(right, asked)
        majority = all_counts.max() / all_counts.sum()
    else:
        whole = answers if task.metric == "answer" else right == asked
        score, (bottom, top) = whole.mean(), wilson(int(whole.sum()), samples)
        majority = last_counts.max() / samples
    chance = 0.0 if task.metric == "sequence" else task.chance  # of a whole sequence: none
    return Evaluation(
        min_length=low,
        max_length=high,
        samples=samples,
        metric=task.metric,
        score=float(score),
        low=bottom,
        high=top,
        scaled=float((score - chance) / (1 - chance)),
        majority=float(majority),
        token_accuracy=float(token_accuracy),
        answer_accuracy=float(answer_accuracy),
        sequence_accuracy=float(sequence_accuracy),
    )


@dataclass(frozen=True)
class Curve:
    """Accuracy against length, from one set of long sequences read prefix by prefix."""

    lengths: Ints
    samples: int
    accuracy: Floats  # of the answer at that length, or by the task's metric
    low: Floats  # 95 % confidence interval of the accuracy
    high: Floats
    sequence_accuracy: Floats  # of all answers up to that length together

    @property
    def horizon(self) -> int | None:
        """The length up to which accuracy stays at 0.99 or above; None if nowhere."""
        return horizon(self.lengths, self.accuracy)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        names = ("lengths", "accuracy", "low", "high", "sequence_accuracy")
        arrays = {name: getattr(self, name).tolist() for name in names}
        return {"samples": self.samples, "horizon": self.horizon, **arrays}


def curve(
    model: SequenceModel,
    task: Task,
    max_length: int,
    *,
    samples: int = 256,
    split: str = "test",
    data_seed: int = 0,
) -> Curve:
    """Accuracy at every length up to `max_length`, or at some of them.

    Where every prefix of a sequence is a sequence as good as any, one pass gives all lengths;
    otherwise 40 lengths, evenly spaced on a logarithmic axis, are evaluated one by one.
    """
    if not isinstance(task, PrefixTask) or not task.prefixes_are_samples:
        return _curve_of_samples(model, task, max_length, samples, split, data_seed)
    dense = replace(task, supervision="dense")
    dense.check_lengths(max_length, max_length)
    at_least("samples", samples, 1)
    rng = generator(data_seed, split, max_length)
    size = dense.input_size(max_length)
    right, whole = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    lengths = np.arange(dense.min_length, max_length + 1)
    at = np.array([dense.input_size(int(n)) - 1 for n in lengths])
    for part in _batches(samples, size):
        batch = dense.sample(rng, np.full(part.stop - part.start, max_length))
        correct = predict(model, batch.tokens) == batch.targets
        right += correct.sum(0)
        whole += np.logical_and.accumulate(correct, axis=1).sum(0)
    interval = np.array([wilson(int(n), samples) for n in right[at]])
    return Curve(
        lengths, samples, right[at] / samples, interval[:, 0], interval[:, 1], whole[at] / samples
    )


def _curve_of_samples(
    model: SequenceModel, task: Task, max_length: int, samples: int, split: str, data_seed: int
) -> Curve:
    task.check_lengths(task.min_length, max_length)
    grid = np.geomspace(task.min_length, max_length, GRID).round()
    lengths = np.unique(grid.astype(np.int64))
    found = [
        evaluate(model, task, int(n), samples=samples, split=split, data_seed=data_seed)
        for n in lengths
    ]
    columns = ("score", "low", "high", "sequence_accuracy")
    return Curve(lengths, samples, *(np.array([getattr(r, c) for r in found]) for c in columns))


def horizon(lengths: Ints, accuracy: Floats) -> int | None:
    """The greatest of the increasing `lengths` up to which `accuracy` is at least 0.99."""
    solved = np.logical_and.accumulate(np.asarray(accuracy) >= SOLVED)
    return int(np.asarray(lengths)[solved][-1]) if solved.any() else None


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


def bootstrap(right: Ints, asked: Ints) -> tuple[float, float]:
    """The 95 % bootstrap interval of sum(right) / sum(asked) over sequences drawn anew."""
    rng = np.random.default_rng(0)
    shares = np.full(len(right), 1 / len(right))
    times = rng.multinomial(len(right), shares, size=RESAMPLES)  # [resamples, sequences]
    low, high = np.quantile((times @ right) / (times @ asked), [0.025, 0.975])
    return float(low), float(high)


def _batches(samples: int, size: int) -> list[slice]:
    per_batch = max(1, TOKENS_AT_ONCE // min(size, 1024))
    return [slice(n, min(n + per_batch, samples)) for n in range(0, samples, per_batch)]
