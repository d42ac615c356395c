"""What a text may stand for: a regular expression, a DFA, a group or a task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from statetrack.automata import DFA, Group, from_regex, group, read_dfa
from statetrack.errors import UserError
from statetrack.tasks import FAMILIES, make_task

GROUP_NAME = r"([SADZ][0-9]+|Q8)(_x_([SADZ][0-9]+|Q8))*"


REGEX = "regular expression"


class Language(NamedTuple):
    """A regular language and what it was read as."""

    text: str
    kind: str  # in words
    value: DFA | Group


def find_language(text: str) -> Language:
    """The language that a text stands for; a regular expression if it is nothing else.

    A group such as S5 (its word problem, all elements being symbols), the name of a task with an
    automaton, a DFA's JSON file, or any of these with `regex:`, `dfa:` or `group:` before it.
    """
    prefix, colon, rest = text.partition(":")
    if colon and prefix == "regex":
        return Language(text, REGEX, from_regex(rest))
    if re.fullmatch(GROUP_NAME, text):
        return Language(text, "word problem of a group", group(text))
    if text.endswith(".json"):
        return Language(text, "DFA of a file", read_dfa(Path(text)))
    if any(family.matches(text) for family in FAMILIES):
        dfa = make_task(text).automaton()
        if dfa is None:
            raise UserError(f"the task {text} has no automaton: it is not regular, or too large")
        return Language(text, "automaton of a task", dfa)
    return Language(text, REGEX, from_regex(text))
