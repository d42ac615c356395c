"""What a task is: a vocabulary, a sampler, and what counts as right.

A task is a frozen dataclass, so that it is its own configuration. Subclasses write `sample_tokens`
and `targets` (of a `PrefixTask`, `dense_targets`); batches, supervision and solving follow from
them. Everything is numpy and vectorised over the batch; randomness comes only from the generator
that is passed in.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import DFA
from statetrack.config import Named, at_least, check_types, one_of, option, unknown
from statetrack.errors import UserError, check_type
from statetrack.memory import check_memory
from statetrack.plugins import load_plugins
from statetrack.tasks.baseline import Answers, answers, constant_right, last_answers, most_frequent

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
IGNORE = -1  # the target of a position that does not count

SPLITS = {"train": 0, "validation": 1, "test": 2}
TOKEN_BYTES = 64  # that one token takes: its id, target, prediction and what is counted of them
MAX_KIND = 10_000  # tokens of one kind: digits, keys, ...; solvers have a cell for each, per row
MAJORITY = 0x6D616A6F72  # keeps the majority's random stream apart from those of the data
MAJORITY_ERROR = 0.0015  # its standard error, for a 95 % interval of 0.003 to either side, ...
MAJORITY_TOKENS = 1 << 25  # ... unless that takes more tokens than these
LEARNED_ROWS = 8192  # drawn to learn which answers are the most frequent
CURVE_TOKENS = 1 << 23  # drawn for the majorities of all lengths at once


class Batch(NamedTuple):
    """Sequences padded at the right."""

    tokens: Ints  # [B, T]
    targets: Ints  # [B, T], IGNORE where nothing is asked
    lengths: Ints  # [B], as the task counts length


@dataclass(frozen=True)
class Task(Named):
    """Base of all tasks; a subclass is one family, found by name with `matches`."""

    kind: ClassVar[str] = "task"
    family: ClassVar[str]
    examples: ClassVar[tuple[str, ...]]
    about: ClassVar[str]
    # what a sequence is scored on: its answer, all its scored positions together, or each of them
    metric: ClassVar[Literal["answer", "sequence", "token"]]

    name: str = option("", "which task of its family")

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def class_for(cls, name: str) -> type[Task]:
        for family in FAMILIES:
            if family.matches(name):
                return family
        if load_plugins():  # and there may be more families now
            return cls.class_for(name)
        raise unknown("task", name, [e for f in FAMILIES for e in f.examples])

    @classmethod
    def matches(cls, name: str) -> bool:
        """Whether `name` is a task of this family; by default, one of its examples."""
        return name in cls.examples

    @property
    @abstractmethod
    def vocab(self) -> tuple[str, ...]:
        """The tokens, by id, of inputs and targets alike."""

    @property
    @abstractmethod
    def pad(self) -> int:
        """The id that fills a row at its right end."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """The accuracy of guessing, which scaled accuracy maps to 0."""

    @property
    def min_length(self) -> int:
        """The shortest length that makes sense."""
        return 1

    @abstractmethod
    def input_size(self, length: int) -> int:
        """How many tokens the model reads for a sequence of `length`."""

    @abstractmethod
    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        """[B, size] inputs; those past a row's length need not be padded."""

    @abstractmethod
    def targets(self, tokens: Ints) -> Ints:
        """What `solve` returns, for valid tokens [B, T]; padding need not be IGNORE."""

    def majority(self, low: int, high: int | None = None) -> float:
        """The score of always saying the most frequent answer, on lengths low..high (or low).

        At each position it is another one, and the score is by the task's metric: of a task scored
        on whole sequences, the share in which every position is right. Measured once for a task
        and lengths, on a sample that is always the same and large enough for a standard error of
        0.0015, though of at most 2^25 tokens; a task that knows it better may say so.
        """
        high = low if high is None else high
        self.check_lengths(low, high)
        return _measured_majority(self, low, high, self.content)

    @property
    def content(self) -> int | None:
        """For a task that is read from a file, a hash of what was read; cached results go by it."""
        return None

    def automaton(self) -> DFA | None:
        """The minimal automaton, its outputs the answers; None if not regular or too large."""
        return None

    def scored(self, targets: Ints) -> NDArray[np.bool_]:
        """Which positions count for accuracy; the loss counts every one that is not IGNORE."""
        return targets != IGNORE

    def solve(self, tokens: Ints) -> Ints:
        """The targets of any input [B, T]: IGNORE on padding and wherever nothing is asked."""
        tokens = whole_numbers(tokens, "tokens")
        if tokens.ndim != 2:
            raise UserError(f"solve takes tokens [B, T]; got shape {list(tokens.shape)}")
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < len(self.vocab)):
            raise UserError(f"{self.name}: token ids must lie in 0..{len(self.vocab) - 1}")
        return np.where(tokens != self.pad, self.targets(tokens), IGNORE)

    def sample(self, rng: np.random.Generator, lengths: Ints) -> Batch:
        """Sequences of the given lengths."""
        check_type("rng", rng, np.random.Generator, "a generator of numpy")
        lengths = whole_numbers(lengths, "lengths")
        if lengths.ndim != 1 or not lengths.size:
            raise UserError(f"lengths must be [B], at least one; got shape {list(lengths.shape)}")
        self.check_lengths(int(lengths.min()), int(lengths.max()))
        unique, place = np.unique(lengths, return_inverse=True)
        sizes = np.array([self.input_size(int(n)) for n in unique])[place]
        size = int(sizes.max())
        tokens = self.sample_tokens(rng, lengths, size)
        tokens = np.where(np.arange(size) < sizes[:, None], tokens, self.pad)
        return Batch(tokens, self.solve(tokens), lengths)

    def check_lengths(self, low: int, high: int) -> None:
        """Raise a UserError unless low <= high are lengths of this task."""
        for length in (low, high):
            check_type(f"the length of {self.name}", length, int, "a whole number")
        at_least(f"the length of {self.name}", low, self.min_length)
        if high < low:
            raise UserError(f"the greatest length {high} is below the least, {low}")
        needed = TOKEN_BYTES * self.input_size(high)
        check_memory(needed, f"a sequence of {self.name} of length {high:,}")


@dataclass(frozen=True)
class PrefixTask(Task):
    """A task in which every prefix of a sequence is a sequence with an answer of its own."""

    # whether the prefixes of long sequences are distributed like short sequences
    prefixes_are_samples: ClassVar[bool] = True

    supervision: Literal["last", "dense"] = option("last", "targets at the answer or everywhere")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("supervision", self.supervision, ("last", "dense"))

    @abstractmethod
    def dense_targets(self, tokens: Ints) -> Ints:
        """[B, T] -> the right answer at every position, as if each were the last."""

    def targets(self, tokens: Ints) -> Ints:
        everywhere = self.dense_targets(tokens)
        if self.supervision == "dense":
            return everywhere
        position = np.arange(tokens.shape[1])
        last = np.where(tokens != self.pad, position, -1).max(1, initial=-1, keepdims=True)
        return np.where(position == last, everywhere, IGNORE)

    def answer_majorities(self, max_length: int) -> Floats:
        """The share of the most frequent answer at every position of sequences of a length."""
        return _measured_majorities(self, max_length, self.content)


def whole_numbers(values: object, what: str) -> Ints:
    """An array of whole numbers; raise a UserError for what is none."""
    try:
        array = np.asarray(values)
    except (ValueError, RuntimeError, TypeError):  # ragged; with gradients; sparse
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biu":
        raise UserError(f"{what} must be an array of whole numbers; got {type(values).__name__}")
    return array.astype(np.int64)


@lru_cache(maxsize=4096)
def _measured_majority(task: Task, low: int, high: int, _content: int | None) -> float:
    """Learned from some sequences, scored on as many others as the standard error takes."""
    most = MAJORITY_TOKENS // task.input_size(high)
    sample = _Sample(task, low, high, only_last=task.metric == "answer")
    found = sample.draw(min(LEARNED_ROWS, most // 2))
    frequent = most_frequent(found)
    right, asked = _right_and_asked(task, found, frequent)
    variance = np.var(right - right.sum() / asked.sum() * asked) / asked.mean() ** 2
    rows = min(math.ceil(variance / MAJORITY_ERROR**2), most - len(found))
    right, asked = _right_and_asked(task, sample.draw(rows), frequent)
    return float(right.sum() / asked.sum())


def _right_and_asked(task: Task, found: Answers, frequent: Answers) -> tuple[Ints, Ints]:
    """[n]: how many answers of each sequence are the most frequent ones, and of how many."""
    right, asked = found == frequent, found >= 0
    if task.metric == "sequence":
        return (right | ~asked).all(1).astype(np.int64), np.ones(len(found), dtype=np.int64)
    return np.count_nonzero(right & asked, axis=1), np.count_nonzero(asked, axis=1)


@lru_cache(maxsize=64)
def _measured_majorities(task: PrefixTask, length: int, _content: int | None) -> Floats:
    sample = _Sample(replace(task, supervision="dense"), length, length)
    enough = math.ceil(0.25 / MAJORITY_ERROR**2)  # a share varies most at 1/2
    rows = min(CURVE_TOKENS // task.input_size(length), enough)
    shares = constant_right(sample.draw(rows)).mean(0)
    shares.flags.writeable = False  # it is cached
    return shares


class _Sample:
    """The answers of the majority's sample, which is always the same, in bounded memory."""

    def __init__(self, task: Task, low: int, high: int, only_last: bool = False) -> None:
        self.task, self.low, self.high = task, low, high
        self.read = last_answers if only_last else answers
        self.width = 1 if only_last else task.input_size(high)
        self.rng = np.random.default_rng([MAJORITY, low, high])

    def draw(self, rows: int) -> Answers:
        """[rows, width], of at least 64 sequences."""
        rows, at_once = max(rows, 64), max(1, (1 << 20) // self.task.input_size(self.high))
        lengths = np.sort(self.rng.integers(self.low, self.high + 1, rows))  # little padding
        found = np.full((rows, self.width), -1, dtype=np.int32)
        for start in range(0, rows, at_once):
            batch = self.task.sample(self.rng, lengths[start : start + at_once])
            part = self.read(batch.targets, self.task.scored(batch.targets))
            found[start : start + len(part), : part.shape[1]] = part
        return found


FAMILIES: list[type[Task]] = []
F = TypeVar("F", bound=type[Task])


def register(family: F) -> F:
    """Class decorator: make a family of tasks known."""
    FAMILIES.append(family)
    return family


def generator(data_seed: int, split: str, step: int) -> np.random.Generator:
    """The random stream of one batch. Splits and steps are independent of each other."""
    one_of("split", split, SPLITS)
    check_type("data_seed", data_seed, int, "a whole number")
    if not 0 <= data_seed < 2**32:
        raise UserError(f"data_seed must lie in 0..2^32-1; got {data_seed}")
    return np.random.default_rng([data_seed, SPLITS[split], step])
