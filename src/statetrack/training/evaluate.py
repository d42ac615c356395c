"""The accuracy of a model on a task, with confidence intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from statetrack.config import at_least
from statetrack.devices import device_of
from statetrack.errors import UserError, check_type
from statetrack.memory import check_memory
from statetrack.models import SequenceModel
from statetrack.tasks import Batch, FiniteDataset, HeldOut, Task, generator, make_task
from statetrack.tasks.base import Ints

Floats = NDArray[np.float64]

TOKENS_PER_CALL = 1 << 16  # that the model reads in one call
TOKENS_HELD = 1 << 21  # of a batch
SAMPLE_BYTES = 64  # kept of every sequence to the end
RESAMPLES = 1000  # of a bootstrap interval


@dataclass(frozen=True)
class Evaluation:
    """The accuracy on sequences of lengths min_length..max_length."""

    min_length: int
    max_length: int
    samples: int
    metric: str  # which of the accuracies below `score` is: "answer", "sequence" or "token"
    score: float
    low: float  # 95 % confidence interval of the score
    high: float
    scaled: float  # the score, scaled so that chance is 0
    majority: float  # the score of the majority baseline
    token_accuracy: float  # share of the scored positions that are right
    answer_accuracy: float  # share of the sequences whose last scored position is right
    sequence_accuracy: float  # share of the sequences with all scored positions right
    position_accuracy: tuple[float, ...]  # at the first, second, ... scored position
    position_low: tuple[float, ...]
    position_high: tuple[float, ...]

    def to_json(self, *, positions: bool = True) -> dict[str, Any]:
        """Return plain values, with or without those by position."""
        rows = asdict(self).items()
        return {k: v for k, v in rows if positions or not k.startswith("position_")}


def evaluate(
    model: SequenceModel,
    task: Task | str,
    lengths: int | tuple[int, int],
    *,
    samples: int = 1024,
    split: str = "test",
    data_seed: int = 0,
    exclude: FiniteDataset | None = None,
) -> Evaluation:
    """Evaluate a model on new sequences.

    The confidence interval is Wilson's for shares of sequences. For token accuracy it is a
    bootstrap over sequences, since the positions of a sequence are not independent.

    Args:
        model: The model; its parameters are not changed.
        task: A task, or the name of one with its default options.
        lengths: One length, or the least and the greatest of uniform lengths.
        samples: The number of sequences; all of a data set that has fewer.
        split: "train", "validation" or "test".
        data_seed: Seed of the sequences.
        exclude: The finite set that the model was trained on; none of its sequences is used.

    Returns:
        Accuracies by sequence, answer, token and position, with 95 % confidence intervals.

    >>> from statetrack import DeltaNetConfig, ModelConfig, SequenceModel
    >>> model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=16, mixer=DeltaNetConfig()))
    >>> evaluate(model, "parity", (40, 60), samples=64).samples
    64
    """
    task = check_arguments(model, task, samples, exclude)
    low, high = _range(lengths)
    task = task.for_split(split)
    task.check_lengths(low, high)
    draw = task.sample if exclude is None else partial(HeldOut(exclude, split).sample, task)
    # the range is part of the key: its sequences do not depend on other ranges
    rng = generator(data_seed, split, low * 1_000_003 + high)
    given = task.lengths_within(low, high)
    if given is not None:
        samples = min(samples, len(given))
    # sorted: little padding in a batch
    drawn = np.sort(task.sample_lengths(rng, low, high, samples))
    # given sequences are drawn at once: each at most once
    all_given = None if given is None else task.sample(rng, drawn)
    size = task.input_size(high)
    right = np.zeros(samples, dtype=np.int64)  # right positions of each sequence
    num_scored = np.zeros(samples, dtype=np.int64)
    answers = np.zeros(samples, dtype=bool)
    right_at = np.zeros(size, dtype=np.int64)  # sequences whose n-th scored position is right
    scored_at = np.zeros(size, dtype=np.int64)
    for rows in batches(samples, size):
        batch = _rows(all_given, rows) if all_given is not None else draw(rng, drawn[rows])
        scored = task.scored(batch.targets)
        correct = (predict(model, batch.tokens) == batch.targets) & scored
        ranks = np.cumsum(scored, axis=1) - 1
        right[rows], num_scored[rows] = correct.sum(1), scored.sum(1)
        answers[rows] = (correct & (ranks == ranks[:, -1:])).any(1)
        right_at += np.bincount(ranks[correct], minlength=size)
        scored_at += np.bincount(ranks[scored], minlength=size)
    token_accuracy = right.sum() / num_scored.sum()
    if task.metric == "token":
        score, (bottom, top) = token_accuracy, bootstrap(right, num_scored)
    else:
        whole = answers if task.metric == "answer" else right == num_scored
        score, (bottom, top) = whole.mean(), map(float, wilson(whole.sum(), samples))
    right_at, scored_at = right_at[scored_at > 0], scored_at[scored_at > 0]
    by_position = (right_at / scored_at, *wilson(right_at, scored_at))
    return Evaluation(
        min_length=low,
        max_length=high,
        samples=samples,
        metric=task.metric,
        score=float(score),
        low=bottom,
        high=top,
        scaled=float(scaled(score, score_chance(task))),
        majority=task.majority(low, high),
        token_accuracy=float(token_accuracy),
        answer_accuracy=float(answers.mean()),
        sequence_accuracy=float((right == num_scored).mean()),
        position_accuracy=tuple(by_position[0].tolist()),
        position_low=tuple(by_position[1].tolist()),
        position_high=tuple(by_position[2].tolist()),
    )


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.tokens[rows], batch.targets[rows], batch.lengths[rows])


def check_arguments(model: object, task: Task | str, samples: int, exclude: object) -> Task:
    """Check the arguments of `evaluate` and `curve`, and return the task."""
    check_type("model", model, nn.Module, "a SequenceModel")
    check_type("task", task, (Task, str), "a Task or the name of one")
    check_type("samples", samples, int, "a whole number")
    at_least("samples", samples, 1)
    check_memory(SAMPLE_BYTES * samples, f"an evaluation on {samples:,} sequences")
    check_type("exclude", exclude, (FiniteDataset, type(None)), "a FiniteDataset or None")
    return make_task(task) if isinstance(task, str) else task


def _range(lengths: int | tuple[int, int]) -> tuple[int, int]:
    ends = (lengths, lengths) if isinstance(lengths, int) else lengths
    if not isinstance(ends, tuple | list) or [type(end) for end in ends] != [int, int]:
        raise UserError(f"lengths must be a whole number or a pair of them; got {lengths!r}")
    return ends[0], ends[1]


def score_chance(task: Task) -> float:
    """Return the score of guessing, by the task's metric."""
    # guessing a whole sequence right has a negligible probability
    return 0.0 if task.metric == "sequence" else task.chance


def scaled(accuracy: Any, chance: float) -> Any:
    """Scale an accuracy so that chance is 0 and 1 stays 1."""
    return (accuracy - chance) / (1 - chance)


@torch.no_grad()
def predict(model: SequenceModel, tokens: Ints) -> Ints:
    """Return the most likely token at every position of tokens [B, T], in bounded memory."""
    was_training = model.training
    model.eval()
    inputs = torch.from_numpy(tokens).to(device_of(model))
    size = max(1, TOKENS_PER_CALL // len(tokens))
    state = None
    out = []
    for start in range(0, tokens.shape[1], size):
        logits, state = model(inputs[:, start : start + size], state)
        out.append(logits.argmax(-1))
    model.train(was_training)
    return torch.cat(out, 1).cpu().numpy()


def batches(samples: int, size: int) -> Iterator[slice]:
    """Split `samples` sequences of `size` tokens into batches of bounded memory."""
    per_batch = max(1, min(TOKENS_PER_CALL // min(size, 1024), TOKENS_HELD // size))
    for start in range(0, samples, per_batch):
        yield slice(start, min(start + per_batch, samples))


def wilson(right: Any, samples: Any, z: float = 1.959964) -> tuple[Floats, Floats]:
    """Return Wilson's 95 % interval of the share right / samples, numbers or arrays."""
    p = np.asarray(right) / samples
    scale = 1 + z * z / samples
    centre = (p + z * z / (2 * samples)) / scale
    spread = z * np.sqrt(p * (1 - p) / samples + z * z / (4 * samples**2)) / scale
    return np.maximum(0.0, centre - spread), np.minimum(1.0, centre + spread)


def bootstrap(right: Ints, num_scored: Ints) -> tuple[float, float]:
    """Return a 95 % interval of sum(right) / sum(num_scored), resampling the sequences."""
    rng = np.random.default_rng(0)
    shares = np.full(len(right), 1 / len(right))
    times = rng.multinomial(len(right), shares, size=RESAMPLES)  # [resamples, sequences]
    low, high = np.quantile((times @ right) / (times @ num_scored), [0.025, 0.975])
    return float(low), float(high)
