"""The deterministic context-free tasks of the Chomsky hierarchy suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from statetrack.errors import UserError
from statetrack.tasks.base import Batch, Ints, register
from statetrack.tasks.chomsky import TERMINATOR, ChomskyTask, gather, uniform
from statetrack.tasks.expressions import (
    ABSENT,
    Symbols,
    answered_at,
    bracket_expressions,
    bracket_values,
)


@register
@dataclass(frozen=True)
class ReverseString(ChomskyTask, task="reverse_string", level="dcf"):
    """The bits from last to first."""

    about: ClassVar[str] = "the string backwards"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "token"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1")
    classes: ClassVar[int] = 2

    def output_sizes(self, lengths: Ints) -> Ints:
        return lengths

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        return uniform(rng, 2, sizes, width)

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return gather(inputs, sizes[:, None] - 1 - np.arange(width))


@register
@dataclass(frozen=True)
class StackManipulation(ChomskyTask, task="stack_manipulation", level="dcf"):
    """A stack, its top last, then actions; asked is the stack they leave, top first, terminated.

    The stack's size is uniform on 1..L-1, or 1. A POP of an empty stack does nothing.
    """

    about: ClassVar[str] = "what pushes and pops leave on a stack"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "token"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1", "POP", "PUSH0", "PUSH1")
    classes: ClassVar[int] = 3
    terminated: ClassVar[bool] = True

    def output_sizes(self, lengths: Ints) -> Ints:
        return lengths + 1

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        stack = rng.integers(1, np.maximum(sizes, 2))[:, None]
        bits, actions = uniform(rng, 2, sizes, width), uniform(rng, 3, sizes, width)
        return np.where(np.arange(width) < stack, bits, 2 + actions)

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        pops = inputs == 2
        pushes = (inputs < self.out) & ~pops  # those that made the first stack included
        height = np.cumsum(np.where(pushes, 1, 0) - pops, axis=1)
        height -= np.minimum(np.minimum.accumulate(height, axis=1), 0)  # ignored pops
        lowest = np.minimum.accumulate(height[:, ::-1], axis=1)[:, ::-1]  # from here on
        rows, times = np.nonzero(pushes & (height == lowest))  # what is never popped
        final = height[:, -1]
        stack = np.zeros((len(inputs), width), dtype=np.int64)
        stack[rows, final[rows] - height[rows, times]] = inputs[rows, times] % 3 % 2
        stack[np.arange(len(inputs)), final] = TERMINATOR
        return stack


@dataclass(frozen=True)
class _Brackets(ChomskyTask, task="", level=""):
    """A bracketed expression, to be valued modulo 5."""

    symbols: ClassVar[tuple[str, ...]] = (*"01234", "+", "-", "*", "(", ")", "x")
    classes: ClassVar[int] = 5

    ids: ClassVar[Symbols] = Symbols(5, zero=0, plus=5, minus=6, times=7, open=8, close=9)
    mult: ClassVar[bool]

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        return self._draw(rng, sizes, width)[0]

    def _draw(self, rng: np.random.Generator, sizes: Ints, width: int) -> tuple[Ints, Ints]:
        return bracket_expressions(rng, sizes, width, self.ids, self.mult, self.pad)

    def sample(self, rng: np.random.Generator, lengths: Ints) -> Batch:
        lengths = np.asarray(lengths, dtype=np.int64)
        self.check_lengths(int(lengths.min()), int(lengths.max()))
        tokens, answers = self._draw(rng, lengths, int(lengths.max()) + 1)
        return answered_at(tokens, lengths, self.out, answers, lengths)

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return bracket_values(inputs, self.ids)[:, None]


@register
@dataclass(frozen=True)
class ModularArithmeticBrackets(_Brackets, task="modular_arithmetic_brackets", level="dcf"):
    """The value of a bracketed expression of + - * modulo 5. No x is drawn."""

    about: ClassVar[str] = "the value of a bracketed expression modulo 5"
    mult: ClassVar[bool] = True


@register
@dataclass(frozen=True)
class ModularArithmeticBracketsNomult(
    _Brackets, task="modular_arithmetic_brackets_nomult", level="dcf"
):
    """The value of a bracketed expression of + and - modulo 5. Neither * nor x is drawn."""

    about: ClassVar[str] = "the value of a bracketed sum modulo 5"
    mult: ClassVar[bool] = False


@register
@dataclass(frozen=True)
class SolveEquation(_Brackets, task="solve_equation", level="dcf"):
    """A bracketed expression of + and - with x for one digit, =, and its value: x is asked.

    Which digit: the first one, cyclically, from a uniform place on. An input of fewer than 3 tokens
    is all 0, and so is its answer.
    """

    about: ClassVar[str] = "the x that solves an equation modulo 5"
    symbols: ClassVar[tuple[str, ...]] = (*"01234", "+", "-", "(", ")", "x", "=")

    ids: ClassVar[Symbols] = Symbols(5, zero=0, plus=5, minus=6, times=ABSENT, open=7, close=8)
    unknown: ClassVar[int] = 9
    equals: ClassVar[int] = 10
    mult: ClassVar[bool] = False

    def _draw(self, rng: np.random.Generator, sizes: Ints, width: int) -> tuple[Ints, Ints]:
        rows, position = np.arange(len(sizes)), np.arange(width)
        body = np.maximum(sizes - 2, 1)
        tokens, values = super()._draw(rng, body, width)
        start = rng.integers(0, body)[:, None]
        distance = np.where(tokens < 5, (position - start) % body[:, None], width)
        chosen = distance.argmin(1)
        answers = tokens[rows, chosen]
        tokens[rows, chosen] = self.unknown
        short = sizes < 3
        tokens[rows[~short], body[~short]] = self.equals
        tokens[rows[~short], body[~short] + 1] = values[~short]
        tokens[short, :2] = 0
        tokens[position >= sizes[:, None]] = self.pad
        return tokens, np.where(short, 0, answers)

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        is_equals = inputs == self.equals
        has_x = (inputs == self.unknown).sum(1)
        if (has_x != is_equals.sum(1)).any() or (has_x > 1).any():
            raise UserError(f"{self.name}: an equation has one x and one =")
        body = np.where(np.cumsum(is_equals, axis=1) == 0, inputs, self.pad)
        at_0, at_1 = (
            bracket_values(np.where(body == self.unknown, x, body), self.ids) for x in (0, 1)
        )
        value = gather(inputs, sizes[:, None] - 1)[:, 0]
        slope = at_1 - at_0  # 1 or -1 modulo 5, and so its own inverse
        return np.where(has_x, (value - at_0) * slope % 5, 0)[:, None]
