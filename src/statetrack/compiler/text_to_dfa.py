"""Text to DFA or group: a regular expression, a file, or the name of a group or task."""

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
GROUP_TASK = rf"{GROUP_NAME}(_only_swaps|_up_to_[0-9]+)?"
PLAIN = r"[\w/ -]+"  # what a name may look like, well spelt or not
GROUP = "word problem of a group"
REGEX = "regular expression"
GIVEN = "given as it is"
SIMILAR = 0.8  # a plain word this close to the name of a task is taken for a misspelling
LEAST_LETTERS = 4  # of a word that is taken for part of a name


class Language(NamedTuple):
    """A regular language and what it was read as."""

    text: str
    kind: str  # in words
    value: DFA | Group

    @property
    def name(self) -> str:
        """The text as the subject of a sentence."""
        return "the DFA" if self.kind == GIVEN else self.text


def find_language(given: str | DFA | Group) -> Language:
    """Return the language that a text stands for; a regular expression if it is nothing else.

    Args:
        given: a group such as S5 (its word problem, with all elements as symbols), the name of a
            task with an automaton, a DFA's JSON file, any of these after `regex:`, `dfa:` or
            `group:`, a DFA or a group. Names may be in any case, and with - or spaces for _:
            "Tomita 3" is tomita3.
    """
    if isinstance(given, Group):
        return Language(given.name, GROUP, given)
    if isinstance(given, DFA):
        return Language("a DFA", GIVEN, given)
    if not isinstance(given, str):
        raise UserError(
            "a language is a regular expression, the name of a group or a task, a DFA or its file, "
            f"or a group; got {type(given).__name__}"
        )
    return _named(given)


def find_dfa(given: str | DFA | Group) -> DFA:
    """Return the DFA of a language, given as for `find_language`."""
    value = find_language(given).value
    return word_problem(value) if isinstance(value, Group) else value


def word_problem(group: Group) -> DFA:
    """Return the DFA whose symbols are the elements and whose state is the product so far."""
    names = tuple(map(str, range(group.order)))
    accepting = np.arange(group.order) == 0
    return DFA(names, group.table.astype(np.int64), 0, accepting, names)


def _named(text: str) -> Language:
    prefix, colon, rest = text.partition(":")
    if colon and prefix == "regex":
        return Language(text, REGEX, from_regex(rest))
    text, typed = _normalised(text), text
    if re.fullmatch(GROUP_NAME, text):
        try:
            return Language(text, GROUP, group(text))
        except UserError as error:
            if text == typed:
                raise
            raise UserError(f"{error}; the regular expression is regex:{typed}") from None
    if (colon and prefix == "dfa") or (prefix != "group" and text.endswith(".json")):
        return Language(text, "DFA of a file", read_dfa(Path(text.removeprefix("dfa:"))))
    if (colon or re.fullmatch(PLAIN, text)) and _is_task(text):
        dfa = make_task(text).automaton()
        if dfa is None:
            raise UserError(f"the task {text} has no automaton: it is not regular, or too large")
        return Language(text, "automaton of a task", dfa)
    meant = _suggestion(text) if re.fullmatch(PLAIN, text) else None
    if meant:
        if " " in text:
            raise UserError(f"there is no task {text!r}; perhaps {meant} is meant")
        either = f"either {meant} is meant or, as a regular expression, regex:{text}"
        raise UserError(f"there is no task {text!r}: {either}")
    if " " in text and re.fullmatch(PLAIN, text):
        raise UserError(
            f"there is no language {text!r}: `statetrack tasks` lists those with a name, and a "
            "regular expression has no spaces"
        )
    return Language(text, REGEX, from_regex(text))


def _is_task(name: str) -> bool:
    return any(family.matches(name) for family in FAMILIES)


def _names() -> list[str]:
    return [name for family in FAMILIES for name in family.examples]


def _normalised(text: str) -> str:
    """The name that a text is but for its case and for what separates words; else the text."""
    if not re.fullmatch(PLAIN, text):
        return text
    words = re.sub(r"[-_ ]+", "_", text.strip().lower())
    for name in (re.sub(r"_(?=[0-9])", "", words), words):  # tomita3, but S5_up_to_3
        # a letter and a number, of which groups have at least 2
        group_name = re.sub(r"(?<![a-z])[sadzq](?=[2-9]|1[0-9])", lambda m: m[0].upper(), name)
        if re.fullmatch(GROUP_TASK, group_name):
            return group_name
        if _is_task(name):
            return name
    squeezed = {re.sub(r"[-_ ]", "", name).lower(): name for name in _names()}
    return squeezed.get(re.sub(r"[-_ ]", "", text).lower(), text)  # flipflop


def _suggestion(text: str) -> str | None:
    """A name that starts with plain words, ends with them or is much like them."""
    word = re.sub(r"[-_ ]+", "_", text.strip().lower())
    if len(word) >= LEAST_LETTERS:
        for name in _names():
            if re.fullmatch(rf"{re.escape(word)}[0-9_].*|.*[_/]{re.escape(word)}", name):
                return name
    nearest = difflib.get_close_matches(word, _names(), n=1, cutoff=SIMILAR)
    return nearest[0] if nearest else None
