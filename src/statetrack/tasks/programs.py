"""Straight-line Python programs over small integers: what is the value of this variable?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import ClassVar, Literal

import numpy as np

from statetrack.config import option, within
from statetrack.tasks.base import IGNORE, MAX_KIND, Ints, Task, register
from statetrack.tasks.forms import fill

SYMBOLS = ("=", "+", "-", "if", "==", ":", ";", "?")
VARIABLE, TERM, OTHER_TERM, SIGN = -1, -2, -3, -4  # what the sampler fills in
FORMS = ("V = T ;", "V = - T ;", "V = T S U ;", "V = - T S U ;")
GUARD = "if V == T : "
LONGEST = 12  # tokens of a guarded statement


@register
@dataclass(frozen=True)
class Programs(Task):
    """`a = 3 ; b = - a + c ; if a == b : c = a - 1 ; b ?`, one token per symbol.

    Values are integers modulo `modulus`, and all variables start at 0. A statement assigns a term,
    or the sum or difference of two, with or without a minus in front; with `conditionals`, about a
    third are guarded by `if variable == term :`. Every statement ends in a semicolon; the answer
    is due on the question mark. With a line per statement and the values reduced, this is Python.

    Length counts tokens. The last two are the question; statements have 4, 5, 6 or 7 tokens, 5
    more with a guard, and the next one is drawn from those that leave a rest which statements can
    fill: nothing, or at least 4. So any length from 6 on is filled without padding.

    So that answers are not mostly 0, a term is a variable, in half of the cases, only if it was
    assigned before without a guard (and is not the first term again), and a number otherwise; the
    question asks for a variable that was assigned, if possible without a guard. Then answers are
    uniform but for short programs that have guarded statements only, where most are 0.
    """

    family: ClassVar[str] = "programs"
    examples: ClassVar[tuple[str, ...]] = ("programs",)
    about: ClassVar[str] = "a variable's value after assignments and conditionals"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "answer"

    name: str = option("programs", "which task of its family")
    variables: int = option(4, "variables, at most 26")
    modulus: int = option(5, "values are integers modulo this")
    conditionals: bool = option(True, "whether assignments may be guarded by an if")

    def __post_init__(self) -> None:
        super().__post_init__()
        within("variables", self.variables, 1, 26)
        within("modulus", self.modulus, 2, MAX_KIND)

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        numbers = map(str, range(self.modulus))
        return ("PAD", *ascii_lowercase[: self.variables], *numbers, *SYMBOLS)

    @property
    def pad(self) -> int:
        return 0

    @property
    def chance(self) -> float:
        return 1 / self.modulus

    @property
    def min_length(self) -> int:
        return 6

    def input_size(self, length: int) -> int:
        return length

    @property
    def _zero(self) -> int:
        return 1 + self.variables  # variables and numbers are the first ids after PAD

    def _id(self, symbol: str) -> int:
        return 1 + self.variables + self.modulus + SYMBOLS.index(symbol)

    @cached_property
    def _forms(self) -> list[list[int]]:
        slots = {"V": VARIABLE, "T": TERM, "U": OTHER_TERM, "S": SIGN}
        texts = [*FORMS, *FORMS, *(GUARD + form for form in FORMS)] if self.conditionals else FORMS
        return [[slots[s] if s in slots else self._id(s) for s in text.split()] for text in texts]

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        slots = np.zeros((len(lengths), size), dtype=np.int64)
        slots[:, : size - 2] = fill(rng, self._forms, lengths - 2)
        question = lengths[:, None] + (-2, -1)
        np.put_along_axis(slots, question, np.array([[VARIABLE, self._id("?")]]), axis=1)

        variable = rng.integers(1, self._zero, slots.shape)
        number = rng.integers(self._zero, self._zero + self.modulus, slots.shape)
        coin = rng.integers(0, 2, slots.shape)
        tokens = np.where(slots == VARIABLE, variable, slots)
        tokens = np.where(slots == SIGN, self._id("+") + coin, tokens)

        assigned = (slots == VARIABLE) & (np.roll(slots, -1, axis=1) == self._id("="))
        unguarded = assigned & (np.roll(slots, 1, axis=1) != self._id(":"))
        statement = np.cumsum(slots == self._id(";"), axis=1)
        first = np.full((len(lengths), self._zero), size)  # the statement that first assigns
        i, t = (index[::-1] for index in np.nonzero(unguarded))
        first[i, tokens[i, t]] = statement[i, t]  # backwards: of several, the first one stays
        readable = np.take_along_axis(first, variable, axis=1) < statement
        term = np.where((coin == 1) & readable, variable, number)
        again = (slots == OTHER_TERM) & (term == np.roll(term, 2, axis=1))
        tokens = np.where((slots == TERM) | (slots == OTHER_TERM), term, tokens)
        tokens = np.where(again, number, tokens)

        preference = (rng.random(slots.shape) + unguarded) * assigned
        asked = preference.argmax(axis=1)[:, None]
        np.put_along_axis(tokens, question[:, :1], np.take_along_axis(tokens, asked, 1), axis=1)
        return tokens

    def targets(self, tokens: Ints) -> Ints:
        cells = len(self.vocab)
        row = cells * np.arange(len(tokens))
        start = np.zeros(cells, dtype=np.int64)  # a cell per token of the vocabulary
        start[self._zero : self._zero + self.modulus] = np.arange(self.modulus)
        memory = np.tile(start, len(tokens))
        for left, right, variable, sign, x, other_sign, y in self._statements(tokens):
            value = sign * memory.take(x + row) + other_sign * memory.take(y + row)
            holds = memory.take(left + row) == memory.take(right + row)
            kept = memory.take(variable + row)
            memory[variable + row] = np.where(holds, value % self.modulus, kept)

        targets = np.full_like(tokens, IGNORE)
        i, t = np.nonzero(tokens == self._id("?"))
        targets[i, t] = self._zero + memory[row[i] + tokens[i, t - 1]]
        return targets

    def _statements(self, tokens: Ints) -> Ints:
        """[S, 7, B]: each row's statements: the sides of the guard, the variable, sign and term,
        sign and term. What is not there is 0: PAD, whose cell of the memory holds 0.
        """
        padded = np.pad(tokens, ((0, 0), (0, LONGEST)))
        i, end = np.nonzero(padded == self._id(";"))
        per_row = np.bincount(i, minlength=len(tokens))
        number = np.arange(len(i)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        start = np.where(number == 0, 0, np.roll(end, 1) + 1)
        guarded = padded[i, start] == self._id("if")
        body = start + 5 * guarded  # variable = ...
        minus = padded[i, body + 2] == self._id("-")
        first = body + 2 + minus
        operator = padded[i, first + 1]
        two = (operator == self._id("+")) | (operator == self._id("-"))
        out = np.zeros((int(per_row.max(initial=0)), 7, len(tokens)), dtype=np.int64)
        fields = (
            np.where(guarded, padded[i, start + 1], 0),
            np.where(guarded, padded[i, start + 3], 0),
            padded[i, body],
            np.where(minus, -1, 1),
            padded[i, first],
            np.where(operator == self._id("-"), -1, 1),
            np.where(two, padded[i, first + 2], 0),
        )
        for field, values in enumerate(fields):
            out[number, field, i] = values
        return out
