"""The tape of the Chomsky hierarchy suite of DeepMind, which its 15 tasks share.

The model reads the input and then one OUT for every output; there, and only there, classes are
asked, which need not be meant as tokens. `chomsky_regular`, `chomsky_dcf` and `chomsky_cs` hold the
tasks, regular, deterministic context-free and context-sensitive.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from statetrack.errors import UserError
from statetrack.tasks.base import IGNORE, Ints, Task

TERMINATOR = 2  # the class after which the outputs of a `terminated` task are only filled up


@dataclass(frozen=True)
class ChomskyTask(Task):
    """Base of the suite's tasks. Length is that of the input, and the suite names the classes."""

    metric: ClassVar[Literal["answer", "sequence", "token"]] = "answer"
    symbols: ClassVar[tuple[str, ...]]  # what the input is written in, by id
    classes: ClassVar[int]  # how many outputs there are to choose from
    terminated: ClassVar[bool] = False  # whether outputs count only up to the first TERMINATOR

    def __init_subclass__(cls, task: str, level: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.family = f"chomsky {level}: {task.replace('_', ' ')}"
        cls.examples = (f"chomsky/{task}",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            object.__setattr__(self, "name", self.examples[0])

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*self.symbols, "OUT", "PAD")

    @property
    def out(self) -> int:
        """The id of the token on which an output is asked."""
        return len(self.symbols)

    @property
    def pad(self) -> int:
        return len(self.symbols) + 1

    @property
    def chance(self) -> float:
        return 1 / self.classes

    def input_sizes(self, lengths: Ints) -> Ints:
        """How many tokens of input stand for each length."""
        return lengths

    def output_sizes(self, lengths: Ints) -> Ints:
        """How many outputs are asked for each length."""
        return np.ones_like(lengths)

    def input_size(self, length: int) -> int:
        lengths = np.array([length])
        return int((self.input_sizes(lengths) + self.output_sizes(lengths))[0])

    @abstractmethod
    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        """[B, width] inputs; what lies past a row's size does not matter."""

    @abstractmethod
    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        """[B, T] inputs of the given sizes -> [B, width or 1] classes, as many as asked, and more.

        Past its size a row holds OUT and PAD.
        """

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        sizes = self.input_sizes(lengths)
        tokens = np.full((len(lengths), size), self.out, dtype=np.int64)
        width = int(sizes.max())
        is_input = np.arange(width) < sizes[:, None]
        tokens[:, :width][is_input] = self.sample_inputs(rng, sizes, width)[is_input]
        return tokens

    def targets(self, tokens: Ints) -> Ints:
        is_out = tokens == self.out
        counts = is_out.sum(1)
        sizes = (tokens != self.pad).sum(1) - counts
        rank = np.arange(tokens.shape[1]) - sizes[:, None]
        expected = np.where(sizes > 0, self.output_sizes(sizes), 0)
        misplaced = is_out != ((rank >= 0) & (rank < expected[:, None]))
        if misplaced.any() or (counts != expected).any():
            raise UserError(f"{self.name}: an input and as many OUT as it has outputs make a tape")
        width = int(counts.max(initial=0))
        if width == 0:
            return np.full_like(tokens, IGNORE)
        classes = self.outputs(tokens, sizes, width)
        if classes.shape[1] > 1:
            classes = np.take_along_axis(classes, rank.clip(0, width - 1), axis=1)
        return np.where(is_out, classes, IGNORE)

    def scored(self, targets: Ints) -> NDArray[np.bool_]:
        asked = super().scored(targets)
        if not self.terminated:
            return asked
        ends = targets == TERMINATOR
        return asked & (np.cumsum(ends, axis=1) - ends == 0)


def uniform(rng: np.random.Generator, symbols: int, sizes: Ints, width: int) -> Ints:
    """[B, width] independent symbols."""
    return rng.integers(0, symbols, (len(sizes), width))


def gather(inputs: Ints, positions: Ints) -> Ints:
    """The inputs at the given positions [B, width], moved into range where they are not."""
    return np.take_along_axis(inputs, positions.clip(0, inputs.shape[1] - 1), axis=1)
