"""Regular expressions to DFAs.

automata-lib makes an NFA of the pattern. The syntax is checked here first, because the library
reads the digits of a{2,3} as symbols, reads a{0} as a? and gives & and | the same precedence. Each
symbol is replaced by a private character before, so that [(][)] means brackets as symbols.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from statetrack.automata.dfa import DFA, check_alphabet
from statetrack.automata.search import MAX_UNMINIMISED_STATES, TooManyStatesError, reach
from statetrack.errors import UserError, check_type

if TYPE_CHECKING:
    from automata.fa.nfa import NFA

SUPPORTED = "literals, |, &, *, +, ?, {m}, {m,}, {m,n}, [abc], [a-c], . and parentheses"
MAX_REGEX_SYMBOLS = 2_000  # after repetitions are written out
PRIVATE = 0xF0000  # the first private character of Unicode

QUANTIFIER = re.compile(r"[*+?]|\{([0-9]*)(,?)([0-9]*)\}")


def from_regex(pattern: str, alphabet: str | Sequence[str] | None = None) -> DFA:
    """Make the minimal DFA of the words that match the whole pattern.

    Args:
        pattern: A regular expression of literals, |, & (intersection; beside | it needs
            parentheses), *, +, ?, {m}, {m,}, {m,n}, [abc], [a-c], . (any symbol) and parentheses.
        alphabet: The symbols, single characters; by default the pattern's literals, sorted.

    >>> from_regex("(ab)*").accepts("abab")
    True
    """
    check_type("pattern", pattern, str, "a text")
    check_type("alphabet", alphabet, (str, tuple, list, type(None)), "a list of characters")
    tokens = _Parser(pattern).tokens
    literals = sorted({symbol for token in tokens if isinstance(token, tuple) for symbol in token})
    alphabet = tuple(literals if alphabet is None else alphabet)
    check_alphabet(alphabet, f"regex {pattern!r}")
    for symbol in alphabet:
        if len(symbol) != 1:
            raise UserError(f"the alphabet of a regex has single characters; got {symbol!r}")
    for symbol in literals:
        if symbol not in alphabet:
            known = ", ".join(alphabet)
            raise UserError(f"regex {pattern!r}: {symbol!r} is not in the alphabet {known}")
    from automata.fa.nfa import NFA  # imported here because it takes a quarter of a second

    private = {symbol: chr(PRIVATE + i) for i, symbol in enumerate(alphabet)}
    written = "".join(
        token if isinstance(token, str) else f"({'|'.join(private[symbol] for symbol in token)})"
        for token in tokens
    )
    nfa = NFA.from_regex(written, input_symbols=set(private.values()))
    return _determinise(nfa, alphabet, list(private.values()), pattern).minimal()


@dataclass
class _Level:
    """The parser's state within one pair of parentheses; sizes are numbers of symbols."""

    opened: int  # position of the opening parenthesis
    operator: str = ""  # | or &, once one is read
    size: int = 0  # of the terms before the last operator
    term: int = 0  # of the term after it
    last: int | None = None  # size of the last piece, if it may be repeated
    empty: bool = True  # whether the term after the last operator is empty


class _Parser:
    """Check a pattern and split it into tokens: operators as strings, sets of symbols as tuples."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.tokens: list[str | tuple[str, ...]] = []
        self.levels = [_Level(0)]
        while self.at < len(pattern):
            self._token()
        if len(self.levels) > 1:
            self.at = self.levels[-1].opened
            self._fail("'(' is not closed")
        if pattern:
            self._end_term()

    def _fail(self, problem: str) -> NoReturn:
        raise UserError(
            f"regex {self.pattern!r}: {problem} at position {self.at + 1}; supported: {SUPPORTED}"
        )

    def _token(self) -> None:
        character = self.pattern[self.at]
        level = self.levels[-1]
        if match := QUANTIFIER.match(self.pattern, self.at):
            self._repeat(match)
        elif character in "|&":
            self._end_term()
            if level.operator not in ("", character):
                self._fail("& and | side by side need parentheses")
            level.operator, level.empty, level.last = character, True, None
            self._add(character)
        elif character == "(":
            self.levels.append(_Level(self.at))
            self._add("(")
        elif character == ")":
            if len(self.levels) == 1:
                self._fail("')' closes nothing")
            if self.pattern[self.at - 1] != "(":  # () is the empty word
                self._end_term()
            self.levels.pop()
            self._piece(level.size)
            self._add(")")
        elif character == "[":
            self._class()
        elif character == ".":
            self._piece(1)
            self._add(".")
        elif character in r"\^$]{}" or character.isspace():
            self._fail(f"{character!r} is not supported")
        else:
            self._piece(1)
            self._add((character,))

    def _add(self, token: str | tuple[str, ...], length: int = 1) -> None:
        self.tokens.append(token)
        self.at += length

    def _piece(self, size: int) -> None:
        level = self.levels[-1]
        level.term += size
        level.last, level.empty = size, False
        self._check_size(level.term)

    def _check_size(self, size: int) -> None:
        if size > MAX_REGEX_SYMBOLS:
            raise UserError(
                f"regex {self.pattern!r} is too large: {size:,} symbols when its repetitions are "
                f"written out; at most {MAX_REGEX_SYMBOLS:,} are supported"
            )

    def _end_term(self) -> None:
        level = self.levels[-1]
        if level.empty:
            self._fail("an empty alternative (write a? for a or nothing)")
        if level.operator == "&":  # a product of automata
            level.size *= level.term
        else:
            level.size += level.term
        level.term = 0
        self._check_size(level.size)

    def _repeat(self, match: re.Match[str]) -> None:
        level = self.levels[-1]
        if level.last is None:
            self._fail(f"{match[0]!r} has nothing to repeat (twice over needs parentheses)")
        times = 1
        if match[0].startswith("{"):
            low, comma, high = match.groups()
            if not (low or high) or len(low + high) > 9:
                self._fail(f"{match[0]!r} is not a repetition")
            most = int(high) if high else int(low or 0) if not comma else None
            if most is not None and not 1 <= most >= int(low or 0):
                self._fail(f"{match[0]!r} must allow at least one and not end before it begins")
            times = max(int(low or 0), int(high or 0), 1)
        level.term += (times - 1) * level.last
        level.last = None
        self._check_size(level.term)
        self._add(match[0], len(match[0]))

    def _class(self) -> None:
        end = self.pattern.find("]", self.at)
        content = self.pattern[self.at + 1 : end]
        if end < 0 or not content or content[0] == "^":
            self._fail("a set that does not look like [abc] or [a-c]")
        for character in content:
            if character in "[\\" or character.isspace():
                self._fail(f"a set with {character!r} in it is not supported")
        symbols: list[str] = []
        i = 0
        while i < len(content):
            if content[i + 1 : i + 2] == "-" and i + 2 < len(content):  # at the end, - is a symbol
                low, high = ord(content[i]), ord(content[i + 2])
                if low > high:
                    self._fail(f"the range {content[i : i + 3]!r} runs backwards")
                self._check_size(high - low)
                symbols += map(chr, range(low, high + 1))
                i += 3
            else:
                symbols.append(content[i])
                i += 1
        unique = tuple(dict.fromkeys(symbols))
        self._piece(len(unique))
        self._add(unique, end + 1 - self.at)


def _determinise(nfa: NFA, alphabet: tuple[str, ...], symbols: list[str], pattern: str) -> DFA:
    """Apply the subset construction. The library's own has no limit on the number of states."""

    def closed(states: set[int]) -> frozenset[int]:
        stack = list(states)
        while stack:
            new = set(nfa.transitions.get(stack.pop(), {}).get("", ())) - states
            states |= new
            stack += new
        return frozenset(states)

    def successors(subset: frozenset[int]) -> Iterator[frozenset[int]]:
        for symbol in symbols:
            moves = (nfa.transitions.get(state, {}).get(symbol, ()) for state in subset)
            yield closed(set().union(*moves))

    try:
        found = reach(closed({nfa.initial_state}), successors, MAX_UNMINIMISED_STATES)
    except TooManyStatesError:
        most = f"{MAX_UNMINIMISED_STATES:,}"
        raise UserError(f"regex {pattern!r} needs a DFA of more than {most} states") from None
    accepting = [not subset.isdisjoint(nfa.final_states) for subset in found.states]
    return DFA(alphabet, np.array(found.next), 0, np.array(accepting))
