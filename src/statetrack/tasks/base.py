"""The base classes of tasks.

A task is a frozen dataclass, so that it is its own configuration. A subclass writes `vocab`,
`chance`, `sample_tokens` and `targets` (a `PrefixTask`: `dense_targets`); batches, supervision and
solving follow from these. Everything is numpy, vectorised over the batch; all randomness comes from
the generator that is passed in.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import DFA
from statetrack.config import Named, at_least, check_types, one_of, option, unknown
from statetrack.errors import UserError, check_type
from statetrack.memory import check_memory
from statetrack.plugins import load_plugins
from statetrack.tasks.baseline import measured_majorities, measured_majority

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Metric = Literal["answer", "sequence", "token"]
IGNORE = -1  # the target of a position that does not count

SPLITS = {"train": 0, "validation": 1, "test": 2}
TOKEN_BYTES = 64  # memory per token: its id, target, prediction and counts
MAX_KIND = 10_000  # tokens of one kind (digits, keys, ...): solvers have a cell for each, per row


class Batch(NamedTuple):
    """Sequences padded at the right."""

    tokens: Ints  # [B, T]
    targets: Ints  # [B, T], IGNORE where nothing is asked
    lengths: Ints  # [B], as the task counts length


@dataclass(frozen=True)
class Task(Named):
    """Base of all tasks. A subclass is a family of tasks, found by name with `matches`."""

    kind: ClassVar[str] = "task"
    family: ClassVar[str]
    examples: ClassVar[tuple[str, ...]]  # names of tasks of this family; the first is the default
    about: ClassVar[str]  # what is asked, in a few words
    # what the score counts: sequences with the right last answer, sequences in which every scored
    # position is right, or scored positions
    metric: ClassVar[Metric]

    name: str = option("", "which task of its family")

    def __post_init__(self) -> None:
        if self.name == "" and self.examples:
            object.__setattr__(self, "name", self.examples[0])
        check_types(self)

    @classmethod
    def class_for(cls, name: str) -> type[Task]:
        for family in FAMILIES:
            if family.matches(name):
                return family
        if load_plugins():  # which may have registered more families
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
    def pad(self) -> int:
        """The id that fills a row at its right end."""
        return 0

    @property
    @abstractmethod
    def chance(self) -> float:
        """The accuracy of guessing, which scaled accuracy maps to 0."""

    @property
    def min_length(self) -> int:
        """The shortest length of a sequence."""
        return 1

    def input_size(self, length: int) -> int:
        """Return how many tokens the model reads for a sequence of `length`."""
        return length

    @property
    def given_lengths(self) -> Ints | None:
        """The lengths of all sequences, sorted, if they are given; None if any can be drawn."""
        return None

    def for_split(self, split: str) -> Task:
        """Return the task that draws from one split; the same for all if sequences are not given.

        Endless streams differ by the generator that draws them.
        """
        return self

    def lengths_within(self, low: int, high: int) -> Ints | None:
        """Return those of `given_lengths` that lie in low..high."""
        given = self.given_lengths
        return None if given is None else given[(low <= given) & (given <= high)]

    def near_length(self, length: int) -> int:
        """Return the length itself or, if sequences are given, the nearest that one has."""
        given = self.given_lengths
        return length if given is None else int(given[np.abs(given - length).argmin()])

    def sample_lengths(self, rng: np.random.Generator, low: int, high: int, count: int) -> Ints:
        """Draw lengths in low..high: uniform, or of given sequences, which are equally likely."""
        given = self.lengths_within(low, high)
        if given is None:
            return rng.integers(low, high + 1, count)
        return rng.choice(given, count, replace=count > len(given))

    @abstractmethod
    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        """Draw inputs [B, size]; positions past a row's length need not be padded."""

    @abstractmethod
    def targets(self, tokens: Ints) -> Ints:
        """Compute what `solve` returns, for valid tokens [B, T]; padding need not be IGNORE."""

    def majority(self, low: int, high: int | None = None) -> float:
        """Return the score of the majority baseline on lengths low..high (or low).

        The baseline gives the most frequent answer at each position. Its score, by the task's
        metric, is measured once for a task and lengths, on a fixed sample large enough for a
        standard error of 0.0015 (at most 2^25 tokens). A task that knows it exactly overrides this.
        """
        high = low if high is None else high
        self.check_lengths(low, high)
        return measured_majority(self, low, high, self.content)

    @property
    def content(self) -> int | None:
        """A hash of the file that the task was read from, if any; a key of cached results."""
        return None

    def automaton(self) -> DFA | None:
        """Return the minimal DFA whose outputs are the answers; None if not regular or too large.

        It reads the symbols of an input only, not PAD, BOS, = or OUT: the answer that is asked at
        one of these is the output of the state before it.
        """
        return None

    def scored(self, targets: Ints) -> NDArray[np.bool_]:
        """Tell which positions count for accuracy; the loss counts all that are not IGNORE."""
        return targets != IGNORE

    def solve(self, tokens: Ints) -> Ints:
        """Compute the targets of any input.

        Args:
            tokens: [B, T] ids.

        Returns:
            [B, T] ids, IGNORE on padding and wherever nothing is asked.
        """
        tokens = whole_numbers(tokens, "tokens")
        if tokens.ndim != 2:
            raise UserError(f"solve takes tokens [B, T]; got shape {list(tokens.shape)}")
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < len(self.vocab)):
            raise UserError(f"{self.name}: token ids must lie in 0..{len(self.vocab) - 1}")
        return np.where(tokens != self.pad, self.targets(tokens), IGNORE)

    def sample(self, rng: np.random.Generator, lengths: Ints) -> Batch:
        """Draw sequences of the given lengths [B].

        >>> from statetrack.tasks import generator, make_task
        >>> batch = make_task("parity").sample(generator(0, "train", 0), [5, 3])
        >>> batch.tokens.shape, batch.lengths.tolist()
        ((2, 4), [5, 3])
        """
        check_type("rng", rng, np.random.Generator, "a generator of numpy")
        lengths = whole_numbers(lengths, "lengths")
        if lengths.ndim != 1 or not lengths.size:
            raise UserError(f"lengths must be [B], at least one; got shape {list(lengths.shape)}")
        self.check_lengths(int(lengths.min()), int(lengths.max()))
        unique, index = np.unique(lengths, return_inverse=True)
        sizes = np.array([self.input_size(int(n)) for n in unique])[index]
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
        given, within = self.given_lengths, self.lengths_within(low, high)
        if given is not None and within is not None and not len(within):
            has = f"its lengths are {given[0]} to {given[-1]}"
            raise UserError(f"{self.name} has no sequence of length {low} to {high}; {has}")
        needed = TOKEN_BYTES * self.input_size(high)
        check_memory(needed, f"a sequence of {self.name} of length {high:,}")


@dataclass(frozen=True)
class PrefixTask(Task):
    """A task in which every prefix of a sequence has an answer of its own."""

    # whether the prefixes of long sequences are distributed like short sequences
    prefixes_are_samples: ClassVar[bool] = True

    supervision: Literal["last", "dense"] = option("last", "targets at the answer or everywhere")

    @abstractmethod
    def dense_targets(self, tokens: Ints) -> Ints:
        """Compute the answer at every position of tokens [B, T], as if it were the last."""

    def targets(self, tokens: Ints) -> Ints:
        everywhere = self.dense_targets(tokens)
        if self.supervision == "dense":
            return everywhere
        position = np.arange(tokens.shape[1])
        last = np.where(tokens != self.pad, position, -1).max(1, initial=-1, keepdims=True)
        return np.where(position == last, everywhere, IGNORE)

    def answer_majorities(self, max_length: int) -> Floats:
        """Return the share of the most frequent answer at every position up to a length."""
        return measured_majorities(self, max_length, self.content)


def whole_numbers(values: object, what: str) -> Ints:
    """Convert to an array of integers; raise a UserError if the values are not integers."""
    try:
        array = np.asarray(values)
    except (ValueError, RuntimeError, TypeError):  # ragged; with gradients; sparse
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biu":
        raise UserError(f"{what} must be an array of whole numbers; got {type(values).__name__}")
    return array.astype(np.int64)


FAMILIES: list[type[Task]] = []
F = TypeVar("F", bound=type[Task])


def register(family: F) -> F:
    """Add a family of tasks to those that `make_task` knows (a class decorator)."""
    FAMILIES.append(family)
    return family


def generator(data_seed: int, split: str, step: int) -> np.random.Generator:
    """Return the random stream of one batch; splits and steps are independent."""
    one_of("split", split, SPLITS)
    check_type("data_seed", data_seed, int, "a whole number")
    if not 0 <= data_seed < 2**32:
        raise UserError(f"data_seed must lie in 0..2^32-1; got {data_seed}")
    return np.random.default_rng([data_seed, SPLITS[split], step])
