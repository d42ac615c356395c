"""Regular languages: where is the automaton, is the word accepted, what may come next?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import DFA, from_regex, read_dfa
from statetrack.config import one_of, option, unknown
from statetrack.errors import UserError
from statetrack.tasks.base import Ints, PrefixTask, register
from statetrack.tasks.languages import NAMED, named_language

Floats = NDArray[np.float64]
PREDICT = ("state", "membership", "next_symbols")


@register
@dataclass(frozen=True)
class Automaton(PrefixTask):
    """A DFA reads a word, one symbol a token; the target belongs to the state it is in then.

    Named `regex:PATTERN`, `dfa:FILE` (JSON) or as one of the known languages. `predict` says what
    is asked: the state of the minimal DFA, whether the word so far is in the language, or which
    symbols may come next without leaving every word of the language (as one class per set).

    Words are not uniform, for that would leave many languages with one answer only: the answer at
    the end is drawn first, uniformly among those that the length allows, and then the word,
    uniformly among those with that answer (and, for `next_symbols`, that are prefixes of words of
    the language). So a prefix of a long word is not like a short word of its own.
    """

    prefixes_are_samples: ClassVar[bool] = False

    family: ClassVar[str] = "automaton"
    examples: ClassVar[tuple[str, ...]] = ("regex:(ab)*", *NAMED)
    about: ClassVar[str] = "the state of a finite automaton"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "answer"

    name: str = option("regex:(ab)*", "which task of its family")
    predict: Literal["state", "membership", "next_symbols"] = option("state", "what is asked")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("predict", self.predict, PREDICT)
        clashes = set(self.dfa.alphabet) & {"PAD", *self.classes}
        if clashes:
            raise UserError(
                f"{self.name}: a symbol must not be called {clashes.pop()!r}, like an answer"
            )
        states = self._alive if self.predict == "next_symbols" else slice(None)
        if len(np.unique(self._class_of[0][states])) < 2:
            raise UserError(
                f"{self.name} has one answer only for predict={self.predict}: nothing to learn"
            )

    @classmethod
    def matches(cls, name: str) -> bool:
        return re.match(r"regex:|dfa:", name) is not None or named_language(name) is not None

    @cached_property
    def dfa(self) -> DFA:
        """The minimal complete DFA."""
        kind, _, rest = self.name.partition(":")
        if kind == "regex":
            return from_regex(rest)
        if kind == "dfa":
            return read_dfa(Path(rest)).minimal()
        language = named_language(self.name)
        if language is None:
            raise unknown("task", self.name, self.examples)
        return language.minimal()

    @cached_property
    def _alive(self) -> NDArray[np.bool_]:
        """[states]: whether an accepting state can still be reached."""
        alive = self.dfa.accepting.copy()
        for _ in range(self.dfa.states):
            alive |= alive[self.dfa.delta].any(1)
        return alive

    @cached_property
    def _class_of(self) -> tuple[Ints, tuple[str, ...]]:
        """The class of each state, and the names of the classes."""
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
    def pad(self) -> int:
        return 0

    @property
    def chance(self) -> float:
        return 1 / len(self.classes)

    def automaton(self) -> DFA:
        return self.dfa

    def input_size(self, length: int) -> int:
        return length

    def dense_targets(self, tokens: Ints) -> Ints:
        symbols = len(self.dfa.alphabet)
        if (tokens > symbols).any():
            raise UserError(f"{self.name}: the input has tokens that are no symbols")
        states = self.dfa.run(np.maximum(tokens - 1, 0))  # what follows padding is not looked at
        return 1 + symbols + self._class_of[0][states]

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        ways = self._ways_to_class(size)
        possible = ways[:, lengths, self.dfa.start].T >= 0  # [B, classes]
        if not possible.any(1).all():
            least = lengths[~possible.any(1)].min()
            raise UserError(f"{self.name} has no prefixes of length {least}: its words end before")
        goals = _uniform_choice(rng, possible)
        return 1 + self._walk(rng, lengths, size, ways, goals)

    def _ways_to_class(self, size: int) -> Floats:
        """[classes, n, q]: the logarithm of how many words of length n lead from q to a class."""
        ways = np.full((len(self.classes), size + 1, self.dfa.states), -np.inf)
        ways[:, 0][self._class_of[0] == np.arange(len(self.classes))[:, None]] = 0
        barred = ~self._alive if self.predict == "next_symbols" else np.zeros_like(self._alive)
        ways[:, 0, barred] = -np.inf
        for n in range(size):
            ways[:, n + 1] = np.logaddexp.reduce(ways[:, n][:, self.dfa.delta], axis=-1)
            ways[:, n + 1, barred] = -np.inf
        return ways

    def _walk(
        self, rng: np.random.Generator, lengths: Ints, size: int, ways: Floats, goals: Ints
    ) -> Ints:
        """Words whose every step is drawn by how many ways to the goal it leaves open."""
        states, symbols = self.dfa.delta.shape
        following = ways[:, :, self.dfa.delta]  # [goal, n left, state, symbol]
        best = following.max(-1, keepdims=True)
        shares = np.exp(following - np.where(np.isfinite(best), best, 0)).cumsum(-1)
        shares /= np.maximum(shares[..., -1:], 1)  # at least 1 wherever the goal can be reached
        bounds = [np.ascontiguousarray(shares[..., s]).ravel() for s in range(symbols - 1)]
        delta = self.dfa.delta.ravel()
        words = np.empty((size, len(lengths)), dtype=np.int64)
        draws = rng.random((size, len(lengths)))
        state = np.full(len(lengths), self.dfa.start)
        for t in range(size):
            left = np.maximum(lengths - t - 1, 0)  # past a row's end anything goes
            at = (goals * (size + 1) + left) * states + state
            choice = np.zeros(len(lengths), dtype=np.int64)
            for bound in bounds:
                choice += draws[t] >= bound.take(at)
            words[t] = choice
            state = delta.take(state * symbols + choice)
        return words.T


def _uniform_choice(rng: np.random.Generator, allowed: NDArray[np.bool_]) -> Ints:
    """[B, n] -> one allowed column of each row."""
    ranks = allowed.cumsum(1)
    wanted = (rng.random(len(allowed)) * ranks[:, -1]).astype(np.int64)
    return (ranks <= wanted[:, None]).sum(1)
