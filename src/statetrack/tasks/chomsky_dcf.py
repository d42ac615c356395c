"""The deterministic context-free tasks of the Chomsky hierarchy suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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

    about = "the string backwards"
    metric = "token"

    def output_sizes(self, lengths: Ints) -> Ints:
        return lengths

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        return gather(inputs, sizes[:, None] - 1 - np.arange(width))


@register
@dataclass(frozen=True)
class StackManipulation(ChomskyTask, task="stack_manipulation", level="dcf"):
    """A stack, its top last, then actions. The outputs are the final stack, top first, terminated.

    The size of the first stack is uniform on 1..L-1, or 1. A POP of an empty stack does nothing.
    """

    about = "what pushes and pops leave on a stack"
    metric = "token"
    symbols = ("0", "1", "POP", "PUSH0", "PUSH1")
    classes = 3
    terminated = True

    def output_sizes(self, lengths: Ints) -> Ints:
        return lengths + 1

    def sample_inputs(self, rng: np.random.Generator, sizes: Ints, width: int) -> Ints:
        stack = rng.integers(1, np.maximum(sizes, 2))[:, None]
        bits, actions = uniform(rng, 2, sizes, width), uniform(rng, 3, sizes, width)
        return np.where(np.arange(width) < stack, bits, 2 + actions)

    def outputs(self, inputs: Ints, sizes: Ints, width: int) -> Ints:
        pops = inputs == 2
        pushes = (inputs < self.out) & ~pops  # the symbols of the first stack count as pushes
        height = np.cumsum(np.where(pushes, 1, 0) - pops, axis=1)
        height -= np.minimum(np.minimum.accumulate(height, axis=1), 0)  # pops of an empty stack
        lowest = np.minimum.accumulate(height[:, ::-1], axis=1)[:, ::-1]  # from here to the end
        rows, times = np.nonzero(pushes & (height == lowest))  # never popped
        final = height[:, -1]
        stack = np.zeros((len(inputs), width), dtype=np.int64)
        stack[rows, final[rows] - height[rows, times]] = inputs[rows, times] % 3 % 2
        stack[np.arange(len(inputs)), final] = TERMINATOR
        return stack


@dataclass(frozen=True)
class _Brackets(ChomskyTask, task="", level=""):
    """A bracketed expression, whose value modulo 5 is the answer."""

    symbols = (*"01234", "+", "-", "*", "(", ")", "x")
    classes = 5

    ids = Symbols(5, zero=0, plus=5, minus=6, times=7, open=8, close=9)
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

    about = "the value of a bracketed expression modulo 5"
    mult = True


@register
@dataclass(frozen=True)
class ModularArithmeticBracketsNomult(
    _Brackets, task="modular_arithmetic_brackets_nomult", level="dcf"
):
    """The value of a bracketed expression of + and - modulo 5. Neither * nor x is drawn."""

    about = "the value of a bracketed sum modulo 5"
    mult = False


@register
@dataclass(frozen=True)
class SolveEquation(_Brackets, task="solve_equation", level="dcf"):
    """A bracketed expression of + and - with x for one digit, =, and its value. The answer is x.

    The digit that x replaces is the next one, cyclically, from a uniform position. An input of
    fewer than 3 tokens is all 0, and so is the answer.
    """

    about = "the x that solves an equation modulo 5"
    symbols = (*"01234", "+", "-", "(", ")", "x", "=")

    ids = Symbols(5, zero=0, plus=5, minus=6, times=ABSENT, open=7, close=8)
    unknown = 9
    equals = 10
    mult = False

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
        slope = at_1 - at_0  # 1 or -1 modulo 5, so its own inverse
        return np.where(has_x, (value - at_0) * slope % 5, 0)[:, None]
