"""Regular languages: the state of the DFA, membership, or the symbols that may come next."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import DFA, from_regex, read_dfa
from statetrack.config import option, unknown
from statetrack.errors import UserError
from statetrack.tasks.base import Ints, PrefixTask, Task, register
from statetrack.tasks.languages import NAMED, check_size, named_language
from statetrack.tasks.word_sampler import NoWordsError, WordSampler


@register
@dataclass(frozen=True)
class Automaton(PrefixTask):
    """A DFA reads a word, one symbol per token; the target depends on its state.

    The name is `regex:PATTERN`, `dfa:FILE` (JSON), `automaton:TASK` (that of another task) or one
    of the named languages. `predict` chooses the target: the state of the minimal DFA, whether the
    word so far is in the language, or the set of symbols that may come next in a word of the
    language (one class per set).

    Uniform words would give many languages a single answer. So the last answer is drawn first,
    uniformly among those that the length allows, then the word, uniformly among those with that
    answer (for `next_symbols`, among prefixes of words of the language). Prefixes of long words are
    therefore not distributed like short words, and with dense supervision only the last answer is
    balanced.
    """

    prefixes_are_samples = False

    family = "automaton"
    examples = ("regex:(ab)*", *NAMED)
    about = "the state of a finite automaton"
    metric = "answer"

    predict: Literal["state", "membership", "next_symbols"] = option("state", "what is asked")

    def __post_init__(self) -> None:
        super().__post_init__()
        clashes = set(self.dfa.alphabet) & {"PAD", *self.classes}
        if clashes:
            raise UserError(
                f"{self.name}: a symbol must not be called {clashes.pop()!r}, like an answer"
            )
        if len(np.unique(self._class_of[0][self._asked])) < 2:
            raise UserError(
                f"{self.name} has one answer only for predict={self.predict}: nothing to learn"
            )

    @classmethod
    def matches(cls, name: str) -> bool:
        return (
            re.match(r"regex:|dfa:|automaton:", name) is not None
            or named_language(name) is not None
        )

    @cached_property
    def dfa(self) -> DFA:
        """The minimal complete DFA, of at most 1,024 states."""
        kind, _, rest = self.name.partition(":")
        if kind == "regex":
            dfa: DFA | None = from_regex(rest)
        elif kind == "dfa":
            dfa = read_dfa(Path(rest))
        elif kind == "automaton":
            dfa = Task.class_for(rest)(name=rest).automaton()
            if dfa is None:
                raise UserError(
                    f"the task {rest} has no automaton: it is not regular, or too large"
                )
        else:
            dfa = named_language(self.name)
        if dfa is None:
            raise unknown("task", self.name, self.examples)
        check_size(self.name, dfa.states)
        return dfa

    @property
    def content(self) -> int | None:
        dfa = self.dfa
        return hash((dfa.start, dfa.delta.tobytes(), dfa.accepting.tobytes()))

    @cached_property
    def _alive(self) -> NDArray[np.bool_]:
        """[states]: whether an accepting state can be reached."""
        alive = self.dfa.accepting.copy()
        for _ in range(self.dfa.states):
            alive |= alive[self.dfa.delta].any(1)
        return alive

    @property
    def _asked(self) -> NDArray[np.bool_]:
        """[states]: whether there is an answer."""
        return self._alive if self.predict == "next_symbols" else np.ones_like(self._alive)

    @cached_property
    def _class_of(self) -> tuple[Ints, tuple[str, ...]]:
        """The class of each state [states], and the names of the classes."""
        dfa = self.dfa
        if self.predict == "state":
            return np.arange(dfa.states), tuple(f"q{i}" for i in range(dfa.states))
        if self.predict == "membership":
            return dfa.accepting.astype(np.int64), ("reject", "accept")
        legal = self._alive[dfa.delta]  # [states, symbols]
        names = ["{" + " ".join(np.array(dfa.alphabet)[row]) + "}" for row in legal]
        distinct = sorted(set(np.array(names)[self._alive]))
        index = [
            distinct.index(n) if alive else 0 for n, alive in zip(names, self._alive, strict=True)
        ]
        return np.array(index), tuple(distinct)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the answers."""
        return self._class_of[1]

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        return ("PAD", *self.dfa.alphabet, *self.classes)

    @property
    def chance(self) -> float:
        return 1 / len(self.classes)

    def automaton(self) -> DFA:
        """Return the minimal DFA; its outputs are the names of the classes."""
        of_class, names = self._class_of
        outputs = [
            names[c] if asked else None for c, asked in zip(of_class, self._asked, strict=True)
        ]
        return replace(self.dfa, outputs=tuple(outputs))

    @cached_property
    def _reader(self) -> tuple[DFA, Ints]:
        """The DFA over token ids, in which PAD keeps the state, and the target of each state."""
        dfa = self.dfa
        delta = np.column_stack([np.arange(dfa.states), dfa.delta])
        targets = 1 + len(dfa.alphabet) + self._class_of[0]
        return DFA(("PAD", *dfa.alphabet), delta, dfa.start, dfa.accepting), targets

    def dense_targets(self, tokens: Ints) -> Ints:
        reader, targets = self._reader
        if tokens.max(initial=0) >= len(reader.alphabet):
            raise UserError(f"{self.name}: the input has tokens that are no symbols")
        states = reader.run(tokens).T  # [T, B], as in memory
        return targets.take(states).T

    @cached_property
    def _words(self) -> WordSampler:
        return WordSampler(self.dfa.delta, self.dfa.start, self._class_of[0], self._asked)

    def majority(self, low: int, high: int | None = None) -> float:
        """Return the exact score: all last answers that a length allows are equally frequent."""
        high = low if high is None else high
        self.check_lengths(low, high)
        classes, asked = self._class_of[0], self._asked
        reached = np.arange(self.dfa.states) == self.dfa.start  # by words of length 0, 1, ...
        first: dict[bytes, int] = {}  # the least length that reaches these states
        answers: list[Ints] = []  # the possible ones at each length
        while len(answers) <= high and (key := reached.tobytes()) not in first:
            first[key] = len(answers)
            answers.append(np.unique(classes[reached]))
            before, reached = reached, np.zeros_like(reached)
            reached[self.dfa.delta[before]] = True
            reached &= asked
        begin = first.get(reached.tobytes(), len(answers))  # from here on they repeat
        shares = np.zeros(len(self.classes))
        for length, possible in enumerate(answers):
            period = len(answers) - begin if length >= begin else high + 1
            skipped = -(min(length - low, 0) // period)
            number = (high - length) // period + 1 - skipped  # of lengths with these answers
            if number > 0 and not len(possible):
                raise self._no_words(length + skipped * period)
            if number > 0:
                shares[possible] += number / len(possible)
        return float(shares.max() / (high + 1 - low))

    def _no_words(self, length: object) -> UserError:
        return UserError(f"{self.name} has no prefixes of length {length}: its words end before")

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        try:
            tokens = self._words.draw(rng, lengths)
        except NoWordsError as error:
            raise self._no_words(error) from None
        tokens += 1
        return tokens
