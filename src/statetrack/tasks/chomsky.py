"""What the tasks of DeepMind's Chomsky hierarchy suite share (arXiv:2207.02098).

The model reads the input, then one OUT token for every output; only these have targets, which are
the suite's class numbers and not token ids. The tasks are in `chomsky_regular`, `chomsky_dcf`
(deterministic context-free) and `chomsky_cs` (context-sensitive).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from statetrack.errors import UserError
from statetrack.tasks.base import IGNORE, Ints, Metric, Task

TERMINATOR = 2  # the class that ends the outputs of a `terminated` task; the rest is filler


@dataclass(frozen=True)
class ChomskyTask(Task):
    """Base of the suite's tasks. Length counts the input.

    The default input is uniform over the symbols, and one of two classes is asked.
    """

    metric: ClassVar[Metric] = "answer"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1")  # the tokens of the input, by id
    classes: ClassVar[int] = 2  # how many different outputs there are
    terminated = False  # whether outputs count only up to the first TERMINATOR

    def __init_subclass__(cls, task: str, level: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.family = f"chomsky {level}: {task.replace('_', ' ')}"
        cls.examples = (f"chomsky/{task}",)

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*self.symbols, "OUT", "PAD")

    @property
    def out(self) -> int:
        """The id of OUT."""
        return len(self.symbols)

    @property
    def pad(self) -> int:
        return len(self.symbols) + 1

    @property
    def chance(self) -> float:
        return 1 / self.classes

    def input_sizes(self, lengths: Ints) -> Ints:
        """Return the number of input tokens for each length."""
        return lengths

    def output_sizes(self, lengths: Ints) -> Ints:
        """Return the number of outputs for each length."""
        return np.ones_like(lengths)

    def input_size(self, length: int) -> int:
        lengths = np.array([length])
        return int((self.input_sizes(lengths) + self.output_sizes(lengths))[0])

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        """Draw inputs [B, width]; what lies past a row's size does not matter."""
        return uniform(rng, len(self.symbols), sizes, width)

    @abstractmethod
    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        """Compute the classes [B, width] of inputs [B, T], or [B, 1] if each row has one output.

        Past its size a row of inputs holds OUT and PAD; past its number of outputs a row of classes
        may hold anything.
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
    """Draw independent uniform symbols [B, width]."""
    return rng.integers(0, symbols, (len(sizes), width))


def gather(inputs: Ints, positions: Ints) -> Ints:
    """Return the inputs at positions [B, width], which are clipped to the range of the inputs."""
    return np.take_along_axis(inputs, positions.clip(0, inputs.shape[1] - 1), axis=1)
