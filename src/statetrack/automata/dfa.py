"""Deterministic finite automata (DFAs) as complete tables, with or without outputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.search import MAX_UNMINIMISED_STATES, TooManyStatesError, reach
from statetrack.errors import UserError, check_type
from statetrack.files import read_json

Ints = NDArray[np.int64]
S = TypeVar("S", bound=Hashable)

DFA_KEYS = ("alphabet", "start", "accepting", "transitions")


@dataclass(frozen=True, eq=False)
class DFA:
    """A complete DFA. Two are equal if their tables are.

    States and symbols are numbered from 0. The tables are kept as given: :meth:`minimal` makes
    the smallest DFA of the same language.

    Args:
        alphabet: The text of each symbol.
        delta: [states, symbols], the next state.
        start: The start state.
        accepting: [states], whether a word that ends in the state is in the language.
        outputs: [states], of a Moore machine: the text that is the answer in each state, or None
            where nothing is asked.

    >>> even = DFA(("0", "1"), [[0, 1], [1, 0]], start=0, accepting=[True, False])
    >>> even.accepts("0110")
    True
    """

    alphabet: tuple[str, ...]
    delta: Ints
    start: int
    accepting: NDArray[np.bool_]
    outputs: tuple[str | None, ...] | None = None

    def __post_init__(self) -> None:
        check_type("a DFA's alphabet", self.alphabet, (tuple, list), "a list of symbols")
        check_type("a DFA's outputs", self.outputs, (tuple, list, type(None)), "a list of texts")
        check_alphabet(self.alphabet, "a DFA")
        # copies, so that no caller can change them
        delta = _array("next states", self.delta, np.int64, "iu")
        accepting = _array("accepting", self.accepting, np.bool_, "biu")
        check_type("a DFA's start", self.start, (int, np.integer), "a state by number")
        states = accepting.size
        if accepting.ndim != 1 or not states or delta.shape != (states, len(self.alphabet)):
            raise UserError(
                f"a DFA needs a next state for each of its {states} states and "
                f"{len(self.alphabet)} symbols; got a table of shape {delta.shape}"
            )
        for what, value in (("start", self.start), ("next", delta.min()), ("next", delta.max())):
            if not 0 <= value < states:
                raise UserError(f"a DFA's {what} state must be 0 to {states - 1}; got {value}")
        if self.outputs is not None and len(self.outputs) != states:
            raise UserError(
                f"a DFA needs an output for each of its {states} states; got {len(self.outputs)}"
            )
        delta.flags.writeable = accepting.flags.writeable = False
        object.__setattr__(self, "alphabet", tuple(self.alphabet))
        object.__setattr__(self, "start", int(self.start))
        object.__setattr__(self, "delta", delta)
        object.__setattr__(self, "accepting", accepting)
        if self.outputs is not None:
            object.__setattr__(self, "outputs", tuple(self.outputs))

    @property
    def states(self) -> int:
        """The number of states, which are 0, 1, ..."""
        return len(self.delta)

    def _content(self) -> tuple[object, ...]:
        tables = self.delta.tobytes(), self.accepting.tobytes()
        return self.alphabet, self.start, *tables, self.outputs

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, DFA) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content())

    def encode(self, word: str | Sequence[str]) -> Ints:
        """Return the numbers [T] of a word's symbols; a string is read character by character."""
        check_type("a word", word, (str, tuple, list), "a text or a list of symbols")
        numbers = {symbol: i for i, symbol in enumerate(self.alphabet)}
        for symbol in word:
            if not isinstance(symbol, str) or symbol not in numbers:
                raise UserError(
                    f"unknown symbol {symbol!r} in {word!r}; known: {', '.join(self.alphabet)}"
                )
        return np.array([numbers[symbol] for symbol in word], dtype=np.int64)

    def run(self, words: Ints, start: int | Ints | None = None) -> Ints:
        """Return the state after every symbol.

        Args:
            words: [B, T], symbols by number.
            start: The state before the first symbol, one for all words or [B].

        Returns:
            [B, T] states.
        """
        check_type("words", words, np.ndarray, "an array [B, T] of symbols by number")
        if words.ndim != 2 or words.dtype.kind not in "biu":
            got = f"{words.dtype} of shape {list(words.shape)}"
            raise UserError(f"words must be symbols by number [B, T]; got {got}")
        starts = _array("start", self.start if start is None else start, np.int64, "iu")
        if starts.dtype.kind not in "iu" or starts.shape not in ((), (len(words),)):
            raise UserError(f"start must be a state, or one for each word; got {start!r}")
        symbols = len(self.alphabet)
        if words.size and not 0 <= words.min() <= words.max() < symbols:
            raise UserError(
                f"symbols must be numbers from 0 to {symbols - 1}; "
                f"got {words.min()} to {words.max()}"
            )
        table = self.delta.ravel()
        # a row per time step, so that reads are contiguous: first its symbols, then its states
        visited = np.array(words.T, dtype=np.int64, order="C")
        state = np.empty(len(words), dtype=np.int64)
        state[:] = starts
        for row in visited:
            # with mode="raise" numpy would copy the output once more
            state = table.take(state * symbols + row, out=row, mode="clip")
        return visited.T

    def accepts(self, word: str | Sequence[str]) -> bool:
        """Whether the word is in the language."""
        state = self.start
        for symbol in self.encode(word):
            state = self.delta[state, symbol]
        return bool(self.accepting[state])

    def minimal(self) -> DFA:
        """Return the smallest complete DFA with the same language and outputs.

        States are numbered breadth first from the start, symbols in the order of the alphabet:
        two languages over one alphabet are equal if and only if their minimal DFAs are.
        """
        numbers: dict[object, int] = {}
        outputs = self.outputs or (None,) * self.states
        answers = zip(self.accepting.tolist(), outputs, strict=True)
        block = np.array([numbers.setdefault(answer, len(numbers)) for answer in answers])
        blocks = 0
        while blocks < (blocks := int(block.max()) + 1) < self.states:  # Moore: split until stable
            finer = block
            for targets in self.delta.T:
                pairs = finer * self.states + block[targets]
                finer = np.unique(pairs, return_inverse=True)[1]
            block = finer
        _, representative = np.unique(block, return_index=True)
        texts = self.outputs and tuple(self.outputs[state] for state in representative)
        start, accepting = int(block[self.start]), self.accepting[representative]
        table = block[self.delta[representative]]
        return DFA(self.alphabet, table, start, accepting, texts).breadth_first()

    def breadth_first(self) -> DFA:
        """Return the same DFA without unreachable states, numbered breadth first from the start."""
        number, place = np.full(self.states, -1), np.zeros(self.states, dtype=np.int64)
        number[self.start] = 0
        order = frontier = np.array([self.start])
        while len(frontier):
            targets = self.delta[frontier].ravel()
            targets = targets[number[targets] < 0]
            places = np.arange(len(targets))
            place[targets[::-1]] = places[::-1]  # the first of each target's places, written last
            frontier = targets[place[targets] == places]
            number[frontier] = len(order) + np.arange(len(frontier))
            order = np.concatenate([order, frontier])
        texts = self.outputs and tuple(self.outputs[state] for state in order)
        return DFA(self.alphabet, number[self.delta[order]], 0, self.accepting[order], texts)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; the states are named q0, q1 and so on."""
        outputs = {f"q{state}": text for state, text in enumerate(self.outputs or ())}
        return {
            "alphabet": list(self.alphabet),
            "start": f"q{self.start}",
            "accepting": [f"q{state}" for state in np.flatnonzero(self.accepting)],
            "transitions": {
                f"q{state}": {a: f"q{q}" for a, q in zip(self.alphabet, row, strict=True)}
                for state, row in enumerate(self.delta.tolist())
            },
            **({"outputs": outputs} if outputs else {}),
        }

    @classmethod
    def from_json(cls, data: Any, where: str = "a DFA") -> DFA:
        """Make the minimal DFA of JSON values in the format of :meth:`to_json`.

        States may have any names. Every transition must be given; "outputs" is optional. `where`
        names the DFA in errors.
        """
        if not isinstance(data, dict) or set(data) - {"outputs"} != set(DFA_KEYS):
            got = ", ".join(map(str, data)) if isinstance(data, dict) else repr(data)
            raise UserError(f"{where} must be an object with {', '.join(DFA_KEYS)}; got {got}")
        alphabet, table, accepted = data["alphabet"], data["transitions"], data["accepting"]

        def fail(problem: str) -> NoReturn:
            raise UserError(f"{where}: {problem}")

        if not isinstance(alphabet, list):
            fail(f"alphabet must be a list of symbols; got {alphabet!r}")
        check_alphabet(alphabet, where)
        if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
            fail("transitions must be an object of objects, one per state")
        if not isinstance(accepted, list):
            fail(f"accepting must be a list of states; got {accepted!r}")
        numbers = {state: i for i, state in enumerate(table)}

        def number(state: object, role: str) -> int:
            if not isinstance(state, str) or state not in numbers:
                known = ", ".join(numbers) or "none"
                fail(f"{role} is {state!r}, a state that is not in transitions; known: {known}")
            return numbers[state]

        for state, row in table.items():
            for symbol in row:
                if symbol not in alphabet:
                    known = ", ".join(alphabet)
                    fail(
                        f"state {state!r} has a transition on {symbol!r}, which is not in the "
                        f"alphabet {known}"
                    )
            for symbol in alphabet:
                if symbol not in row:
                    fail(
                        f"state {state!r} has no transition on {symbol!r}; every state needs one "
                        "on every symbol"
                    )
        start = number(data["start"], "the start")
        accepting = np.zeros(len(table), dtype=np.bool_)
        accepting[[number(state, "an accepting state") for state in accepted]] = True
        delta = [
            [number(row[a], f"the transition of {state!r} on {a!r}") for a in alphabet]
            for state, row in table.items()
        ]
        outputs = data.get("outputs")
        if outputs is not None:
            if not isinstance(outputs, dict) or set(outputs) != set(table):
                fail("outputs must be an object with one output per state")
            for state, text in outputs.items():
                if not (text is None or isinstance(text, str)):
                    fail(f"the output of {state!r} must be a text or null; got {text!r}")
            outputs = tuple(outputs[state] for state in table)
        return cls(tuple(alphabet), np.array(delta), start, accepting, outputs).minimal()


def _array(what: str, values: object, dtype: type, kinds: str) -> NDArray[Any]:
    """Copy a table of a DFA into a new array."""
    try:
        array = np.asarray(values)
    except (ValueError, RuntimeError, TypeError):  # ragged; with gradients; sparse
        array = np.empty(0, dtype=object)
    if array.size and array.dtype.kind not in kinds:
        raise UserError(f"a DFA's {what} cannot be {type(values).__name__} of {array.dtype}")
    return array.astype(dtype)


def check_alphabet(alphabet: Sequence[object], where: str) -> None:
    """Raise a UserError unless the symbols are distinct, non-empty strings, at least one."""
    if not len(alphabet):
        raise UserError(f"{where} needs an alphabet of at least one symbol")
    known: set[str] = set()
    for symbol in alphabet:
        if not isinstance(symbol, str) or not symbol:
            raise UserError(f"{where}: a symbol must be a text that is not empty; got {symbol!r}")
        if symbol in known:
            raise UserError(f"{where}: symbol {symbol!r} is in the alphabet twice")
        known.add(symbol)


def read_dfa(path: Path | str) -> DFA:
    """Read a JSON file in the format of :meth:`DFA.to_json` and return its minimal DFA."""
    return DFA.from_json(read_json(Path(path)), str(path))


def moore_machine(
    alphabet: Sequence[str],
    start: S,
    step: Callable[[S, int], S],
    output: Callable[[S], str | None],
    accept: str,
) -> DFA | None:
    """Make a minimal DFA with outputs from rules.

    Args:
        alphabet: The text of each symbol.
        start: The start state, as `step` and `output` take it.
        step: The next state after a state and a symbol, given by number.
        output: The answer in a state, or None where nothing is asked.
        accept: The words with this answer are accepted.

    Returns:
        The DFA, or None if more than MAX_UNMINIMISED_STATES states can be reached.
    """
    symbols = range(len(alphabet))
    try:
        found = reach(start, lambda s: [step(s, a) for a in symbols], MAX_UNMINIMISED_STATES)
    except TooManyStatesError:
        return None
    outputs = tuple(map(output, found.states))
    accepting = np.array([text == accept for text in outputs])
    return DFA(tuple(alphabet), np.array(found.next), 0, accepting, outputs).minimal()
