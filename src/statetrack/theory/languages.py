"""What a text may stand for: a regular expression, a DFA, a group or a task."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from statetrack.automata import DFA, Group, from_regex, group, read_dfa
from statetrack.errors import UserError
from statetrack.tasks import FAMILIES, make_task

GROUP_NAME = r"([SADZ][0-9]+|Q8)(_x_([SADZ][0-9]+|Q8))*"
GROUP = "word problem of a group"
REGEX = "regular expression"
ALIKE = 0.8  # a plain word this close to the name of a task is one with a mistake


class Language(NamedTuple):
    """A regular language and what it was read as."""

    text: str
    kind: str  # in words
    value: DFA | Group


def find_language(given: str | DFA | Group) -> Language:
    """The language that a text stands for; a regular expression if it is nothing else.

    A group such as S5 (its word problem, all elements being symbols), the name of a task with an
    automaton, a DFA's JSON file, or any of these with `regex:`, `dfa:` or `group:` before it. DFAs
    and groups stand for themselves.
    """
    if isinstance(given, Group):
        return Language(given.name, GROUP, given)
    if isinstance(given, DFA):
        return Language("a DFA", "given as it is", given)
    if not isinstance(given, str):
        raise UserError(
            "a language is a regular expression, the name of a group or a task, a DFA or its file, "
            f"or a group; got {type(given).__name__}"
        )
    return _named(given)


def find_dfa(given: str | DFA | Group) -> DFA:
    """The automaton of a language, given as for `find_language`."""
    value = find_language(given).value
    return word_problem(value) if isinstance(value, Group) else value


def word_problem(group: Group) -> DFA:
    """The product of all elements so far: each is a symbol, and the state is its number."""
    names = tuple(map(str, range(group.order)))
    accepting = np.arange(group.order) == 0
    return DFA(names, group.table.astype(np.int64), 0, accepting, names)


def _named(text: str) -> Language:
    prefix, colon, rest = text.partition(":")
    if colon and prefix == "regex":
        return Language(text, REGEX, from_regex(rest))
    if re.fullmatch(GROUP_NAME, text):
        return Language(text, GROUP, group(text))
    if (colon and prefix == "dfa") or (prefix != "group" and text.endswith(".json")):
        return Language(text, "DFA of a file", read_dfa(Path(text.removeprefix("dfa:"))))
    if any(family.matches(text) for family in FAMILIES):
        dfa = make_task(text).automaton()
        if dfa is None:
            raise UserError(f"the task {text} has no automaton: it is not regular, or too large")
        return Language(text, "automaton of a task", dfa)
    names = [name for family in FAMILIES for name in family.examples]
    nearest = difflib.get_close_matches(text, names, n=1, cutoff=ALIKE)
    if text.isidentifier() and nearest:
        raise UserError(
            f"there is no task {text!r}: either {nearest[0]} is meant or, as a regular expression, "
            f"regex:{text}"
        )
    return Language(text, REGEX, from_regex(text))
