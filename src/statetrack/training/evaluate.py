"""How right a model is, by length: one way for all tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from statetrack.config import at_least
from statetrack.errors import UserError, check_type
from statetrack.memory import check_memory
from statetrack.models import SequenceModel
from statetrack.tasks import FiniteDataset, HeldOut, Task, generator, make_task
from statetrack.tasks.base import Ints
from statetrack.training.intervals import bootstrap, wilson

TOKENS_AT_ONCE = 1 << 16  # bounds what the model works on at once, at any length
SAMPLE_BYTES = 64  # that are held of every sequence to the end: what is counted of it
TOKENS_HELD = 1 << 21  # bounds what is drawn and predicted before it is counted


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
    majority: float  # the score of always saying the most frequent answer
    token_accuracy: float  # over all scored positions together
    answer_accuracy: float  # at each sequence's last scored position
    sequence_accuracy: float  # every scored position of a sequence right
    position_accuracy: tuple[float, ...]  # at the first scored position, the second and so on
    position_low: tuple[float, ...]
    position_high: tuple[float, ...]

    def to_json(self, *, positions: bool = True) -> dict[str, Any]:
        """Plain values, with or without those by position."""
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
    """Evaluate on fresh sequences of one length, or of lengths uniform on a range.

    `task` may be a name, which stands for the task with its default options.

    The interval is Wilson's where a sequence is right or wrong. Token accuracy has a bootstrap
    interval over whole sequences, since the positions of one sequence are not independent.
    `exclude` is the finite set that was trained on, if there is one: nothing of it is asked.
    """
    task = checked(model, task)
    low, high = _range(lengths)
    task.check_lengths(low, high)
    check_samples(samples)
    check_exclude(exclude)
    held_out = None if exclude is None else HeldOut(exclude, split)
    # keyed by the range as well: the set for one range does not move when another is added
    rng = generator(data_seed, split, low * 1_000_003 + high)
    drawn = np.sort(rng.integers(low, high + 1, samples))  # sorted: little padding in a batch
    size = task.input_size(high)
    right = np.zeros(samples, dtype=np.int64)  # scored positions of each sequence that are right
    asked = np.zeros(samples, dtype=np.int64)
    answers = np.zeros(samples, dtype=bool)
    right_at = np.zeros(size, dtype=np.int64)  # sequences that are right at their n-th position
    asked_at = np.zeros(size, dtype=np.int64)
    for part in batches(samples, size):
        if held_out is None:
            batch = task.sample(rng, drawn[part])
        else:
            batch = held_out.sample(task, rng, drawn[part])
        scored = task.scored(batch.targets)
        correct = (predict(model, batch.tokens) == batch.targets) & scored
        ranks = np.cumsum(scored, axis=1) - 1
        right[part], asked[part] = correct.sum(1), scored.sum(1)
        answers[part] = (correct & (ranks == ranks[:, -1:])).any(1)
        right_at += np.bincount(ranks[correct], minlength=size)
        asked_at += np.bincount(ranks[scored], minlength=size)
    token_accuracy = right.sum() / asked.sum()
    if task.metric == "token":
        score, (bottom, top) = token_accuracy, bootstrap(right, asked)
    else:
        whole = answers if task.metric == "answer" else right == asked
        score, (bottom, top) = whole.mean(), map(float, wilson(whole.sum(), samples))
    # of a whole sequence there is no chance to speak of
    chance = 0.0 if task.metric == "sequence" else task.chance
    right_at, asked_at = right_at[asked_at > 0], asked_at[asked_at > 0]
    by_position = (right_at / asked_at, *wilson(right_at, asked_at))
    return Evaluation(
        min_length=low,
        max_length=high,
        samples=samples,
        metric=task.metric,
        score=float(score),
        low=bottom,
        high=top,
        scaled=float(scaled(score, chance)),
        majority=task.majority(low, high),
        token_accuracy=float(token_accuracy),
        answer_accuracy=float(answers.mean()),
        sequence_accuracy=float((right == asked).mean()),
        position_accuracy=tuple(by_position[0].tolist()),
        position_low=tuple(by_position[1].tolist()),
        position_high=tuple(by_position[2].tolist()),
    )


def checked(model: object, task: Task | str) -> Task:
    """The task, which may be a name; raise a UserError for what is no model or no task."""
    check_type("model", model, nn.Module, "a SequenceModel")
    check_type("task", task, (Task, str), "a Task or the name of one")
    return make_task(task) if isinstance(task, str) else task


def check_exclude(exclude: object) -> None:
    """Raise a UserError for what is no data set."""
    check_type("exclude", exclude, (FiniteDataset, type(None)), "a FiniteDataset or None")


def check_samples(samples: int) -> None:
    """Raise a UserError unless so many sequences can be evaluated."""
    check_type("samples", samples, int, "a whole number")
    at_least("samples", samples, 1)
    check_memory(SAMPLE_BYTES * samples, f"an evaluation on {samples:,} sequences")


def _range(lengths: int | tuple[int, int]) -> tuple[int, int]:
    ends = (lengths, lengths) if isinstance(lengths, int) else lengths
    if not isinstance(ends, tuple | list) or len(ends) != 2 or not all(map(_is_whole, ends)):
        raise UserError(f"lengths must be a whole number or a pair of them; got {lengths!r}")
    return ends[0], ends[1]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def scaled(accuracy: Any, chance: float) -> Any:
    """Accuracy with chance at 0 and all right at 1."""
    return (accuracy - chance) / (1 - chance)


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


def batches(samples: int, size: int) -> Iterator[slice]:
    """Parts of so many sequences of `size` tokens: few enough to be held, enough to be fast."""
    per_batch = max(1, min(TOKENS_AT_ONCE // min(size, 1024), TOKENS_HELD // size))
    for start in range(0, samples, per_batch):
        yield slice(start, min(start + per_batch, samples))
