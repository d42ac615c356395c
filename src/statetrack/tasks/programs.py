"""Straight-line Python programs over small integers: the value of a variable."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase

import numpy as np

from statetrack.config import option
from statetrack.tasks.base import IGNORE, MAX_KIND, Ints, Task, register
from statetrack.tasks.statements import fill

PROGRAM_SYMBOLS = ("=", "+", "-", "if", "==", ":", ";", "?")
VARIABLE, TERM, OTHER_TERM, SIGN = -1, -2, -3, -4  # slots that the sampler fills
FORMS = ("V = T ;", "V = - T ;", "V = T S U ;", "V = - T S U ;")
GUARD = "if V == T : "
LONGEST = 12  # tokens of a guarded statement


@register
@dataclass(frozen=True)
class Programs(Task):
    """`a = 3 ; b = - a + c ; if a == b : c = a - 1 ; b ?`, one token per symbol.

    Values are integers modulo `modulus`, and all variables start at 0. A statement assigns a term,
    or the sum or difference of two, with or without a leading minus; with `conditionals`, about a
    third are guarded by `if variable == term :`. Every statement ends in a semicolon; the target is
    on the question mark. With a line per statement and the values reduced, this is Python.

    Length counts tokens. The last two are the question; a statement has 4 to 7 tokens, 5 more with
    a guard, and is uniform among the forms that leave no rest or one of at least 4 tokens. So
    every length from 6 on is filled without padding.

    To avoid answers that are mostly 0, at most half of the terms are variables: ones that an
    earlier unguarded statement assigned and that are not the first term again. All other terms are
    numbers. The question asks for an assigned variable, if possible one assigned without a guard.
    Answers are then uniform, except that short programs of guarded statements only mostly give 0.
    """

    family = "programs"
    examples = ("programs",)
    about = "a variable's value after assignments and conditionals"
    metric = "answer"
    min_length = 6

    variables: int = option(4, "variables, at most 26", low=1, high=26)
    modulus: int = option(5, "values are integers modulo this", low=2, high=MAX_KIND)
    conditionals: bool = option(True, "whether assignments may be guarded by an if")

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        numbers = map(str, range(self.modulus))
        return ("PAD", *ascii_lowercase[: self.variables], *numbers, *PROGRAM_SYMBOLS)

    @property
    def chance(self) -> float:
        return 1 / self.modulus

    @property
    def _zero(self) -> int:
        return 1 + self.variables  # after PAD and the variables

    def _id(self, symbol: str) -> int:
        return 1 + self.variables + self.modulus + PROGRAM_SYMBOLS.index(symbol)

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
        first = np.full((len(lengths), self._zero), size)  # where first assigned
        i, t = (index[::-1] for index in np.nonzero(unguarded))
        first[i, tokens[i, t]] = statement[i, t]  # reversed: the first assignment is written last
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
        """Parse the statements of each row into [S, 7, B].

        The seven fields are both sides of the guard, the variable, sign and term, sign and term.
        A missing field is 0, the id of PAD, whose memory cell always holds 0.
        """
        padded = np.pad(tokens, ((0, 0), (0, LONGEST)))
        i, end = np.nonzero(padded == self._id(";"))
        per_row = np.bincount(i, minlength=len(tokens))
        number = np.arange(len(i)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        start = np.where(number == 0, 0, np.roll(end, 1) + 1)
        guarded = padded[i, start] == self._id("if")
        body = start + 5 * guarded  # position of the assigned variable
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
