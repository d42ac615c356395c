"""Deterministic finite automata: complete tables, with outputs if more than yes or no is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statetrack.errors import UserError, check_type
from statetrack.files import read_json

Ints = NDArray[np.int64]
KEYS = ("alphabet", "start", "accepting", "transitions")


@dataclass(frozen=True, eq=False)
class DFA:
    """A complete automaton. Two are equal if their tables are; see :meth:`minimal` for languages.

    States and symbols are numbers; a symbol's text stands at its place in the alphabet. With
    `outputs` it is a Moore machine: each state answers a text, or None where nothing is asked.
    What comes from a regular expression or a file is minimal; a table made by hand is kept as is.
    """

    alphabet: tuple[str, ...]
    delta: Ints  # [states, symbols]: the next state
    start: int
    accepting: NDArray[np.bool_]  # [states]
    outputs: tuple[str | None, ...] | None = None  # [states]

    def __post_init__(self) -> None:
        check_type("a DFA's alphabet", self.alphabet, (tuple, list), "a list of symbols")
        check_type("a DFA's outputs", self.outputs, (tuple, list, type(None)), "a list of texts")
        check_alphabet(self.alphabet, "a DFA")
        # copies: nobody else can change them
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
        """The number of states."""
        return len(self.delta)

    def _content(self) -> tuple[object, ...]:
        tables = self.delta.tobytes(), self.accepting.tobytes()
        return self.alphabet, self.start, *tables, self.outputs

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, DFA) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content())

    def encode(self, word: str | Sequence[str]) -> Ints:
        """[T]: the numbers of a word's symbols; a text is a sequence of characters."""
        check_type("a word", word, (str, tuple, list), "a text or a list of symbols")
        numbers = {symbol: i for i, symbol in enumerate(self.alphabet)}
        for symbol in word:
            if not isinstance(symbol, str) or symbol not in numbers:
                raise UserError(
                    f"unknown symbol {symbol!r} in {word!r}; known: {', '.join(self.alphabet)}"
                )
        return np.array([numbers[symbol] for symbol in word], dtype=np.int64)

    def step(self, states: int | Ints, symbols: int | Ints) -> Ints:
        """The states after one symbol each."""
        return np.asarray(self.delta[states, symbols])

    def run(self, words: Ints, start: int | Ints | None = None) -> Ints:
        """[B, T] symbols -> [B, T] the state after each; `start` (one or [B]) carries on a run."""
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
            # clip: else numpy copies what it takes once more
            state = table.take(state * symbols + row, out=row, mode="clip")
        return visited.T

    def accepts(self, word: str | Sequence[str]) -> bool:
        """Whether the word is in the language."""
        state = self.start
        for symbol in self.encode(word):
            state = self.delta[state, symbol]
        return bool(self.accepting[state])

    def minimal(self) -> DFA:
        """The smallest complete DFA that accepts the same words and has the same outputs.

        States are numbered breadth first from the start, symbols in the order of the alphabet:
        two languages over one alphabet are equal if and only if their minimal DFAs are.
        """
        seen: dict[object, int] = {}
        outputs = self.outputs or (None,) * self.states
        answers = zip(self.accepting.tolist(), outputs, strict=True)
        block = np.array([seen.setdefault(answer, len(seen)) for answer in answers])
        blocks = 0
        while blocks < (blocks := int(block.max()) + 1) < self.states:  # Moore: split until stable
            finer = block
            for targets in self.delta.T:
                pairs = finer * self.states + block[targets]
                finer = np.unique(pairs, return_inverse=True)[1]
            block = finer
        _, representative = np.unique(block, return_index=True)
        table = block[self.delta[representative]]
        order = breadth_first(table, int(block[self.start]))
        numbers = np.empty(len(table), dtype=np.int64)
        numbers[order] = np.arange(len(order))
        kept = representative[order]
        texts = self.outputs and tuple(self.outputs[state] for state in kept)
        return DFA(self.alphabet, numbers[table[order]], 0, self.accepting[kept], texts)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, states named q0, q1 and so on."""
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
        """The minimal DFA of JSON values as :meth:`to_json` writes them, states named at will.

        Every transition must be given, "outputs" may be; `where` names the DFA in errors.
        """
        if not isinstance(data, dict) or set(data) - {"outputs"} != set(KEYS):
            got = ", ".join(map(str, data)) if isinstance(data, dict) else repr(data)
            raise UserError(f"{where} must be an object with {', '.join(KEYS)}; got {got}")
        alphabet, table = data["alphabet"], data["transitions"]
        if not isinstance(alphabet, list):
            raise UserError(f"{where}: alphabet must be a list of symbols; got {alphabet!r}")
        check_alphabet(alphabet, where)
        if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
            raise UserError(f"{where}: transitions must be an object of objects, one per state")
        if not isinstance(data["accepting"], list):
            raise UserError(
                f"{where}: accepting must be a list of states; got {data['accepting']!r}"
            )
        numbers = {state: i for i, state in enumerate(table)}

        def number(state: object, role: str) -> int:
            if not isinstance(state, str) or state not in numbers:
                known = ", ".join(numbers) or "none"
                raise UserError(
                    f"{where}: {role} is {state!r}, a state that is not in transitions; "
                    f"known: {known}"
                )
            return numbers[state]

        for state, row in table.items():
            for symbol in row:
                if symbol not in alphabet:
                    raise UserError(
                        f"{where}: state {state!r} has a transition on {symbol!r}, which is not "
                        f"in the alphabet {', '.join(alphabet)}"
                    )
            for symbol in alphabet:
                if symbol not in row:
                    raise UserError(
                        f"{where}: state {state!r} has no transition on {symbol!r}; every state "
                        "needs one on every symbol"
                    )
        start = number(data["start"], "the start")
        accepting = np.zeros(len(table), dtype=np.bool_)
        accepting[[number(state, "an accepting state") for state in data["accepting"]]] = True
        delta = [
            [number(row[a], f"the transition of {state!r} on {a!r}") for a in alphabet]
            for state, row in table.items()
        ]
        outputs = data.get("outputs")
        if outputs is not None:
            if not isinstance(outputs, dict) or set(outputs) != set(table):
                raise UserError(f"{where}: outputs must be an object with one output per state")
            for state, text in outputs.items():
                if not (text is None or isinstance(text, str)):
                    raise UserError(
                        f"{where}: the output of {state!r} must be a text or null; got {text!r}"
                    )
            outputs = tuple(outputs[state] for state in table)
        return cls(tuple(alphabet), np.array(delta), start, accepting, outputs).minimal()


def _array(what: str, values: object, dtype: type, kinds: str) -> NDArray[Any]:
    """A table of a DFA, as an array of its own."""
    try:
        array = np.asarray(values)
    except (ValueError, RuntimeError, TypeError):  # ragged; with gradients; sparse
        array = np.empty(0, dtype=object)
    if array.size and array.dtype.kind not in kinds:
        raise UserError(f"a DFA's {what} cannot be {type(values).__name__} of {array.dtype}")
    return array.astype(dtype)


def breadth_first(delta: Ints, start: int) -> Ints:
    """The states that can be reached, in the order in which they are found from the start."""
    layer = np.array([start])
    found = [layer]
    seen = np.zeros(len(delta), dtype=np.bool_)
    while layer.size:
        seen[layer] = True
        targets = delta[layer].ravel()
        targets = targets[~seen[targets]]
        new, first = np.unique(targets, return_index=True)
        layer = new[np.argsort(first)]
        found.append(layer)
    return np.concatenate(found)


def check_alphabet(alphabet: Sequence[object], where: str) -> None:
    """Check that symbols are texts, that there are some, and none twice."""
    if not len(alphabet):
        raise UserError(f"{where} needs an alphabet of at least one symbol")
    seen: set[str] = set()
    for symbol in alphabet:
        if not isinstance(symbol, str) or not symbol:
            raise UserError(f"{where}: a symbol must be a text that is not empty; got {symbol!r}")
        if symbol in seen:
            raise UserError(f"{where}: symbol {symbol!r} is in the alphabet twice")
        seen.add(symbol)


def read_dfa(path: Path | str) -> DFA:
    """The minimal DFA of a JSON file; see :meth:`DFA.to_json` for the format."""
    return DFA.from_json(read_json(Path(path)), str(path))
