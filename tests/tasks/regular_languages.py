"""Regular languages in plain Python: words are texts, and a language is a predicate on them.

States of the minimal DFA are worked out here as Myhill and Nerode do: two words lead to the same
state if the same suffixes make members of them; states are numbered in the order of their first
words, short ones first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest

from statetrack.tasks import Task

Predicate = Callable[[str], bool]


SUFFIX = 4  # long enough to tell apart the states of every language here


def no_odd_zeros_after_odd_ones(word: str) -> bool:
    odd_ones = False
    for symbol, group in groupby(word):
        odd = len(list(group)) % 2 == 1
        if symbol == "0" and odd and odd_ones:
            return False
        odd_ones |= symbol == "1" and odd
    return True


def balanced(word: str, most: int = 3) -> bool:
    depth = 0
    for symbol in word:
        depth += 1 if symbol == "(" else -1
        if not 0 <= depth <= most:
            return False
    return depth == 0


def at_the_end(word: str, fields: int = 5) -> bool:
    place = 0
    for symbol in word:
        place = min(place + 1, fields - 1) if symbol == "R" else max(place - 1, 0)
    return place == fields - 1


def one_is_stored(word: str) -> bool:
    writes = [symbol for symbol in word if symbol != "i"]
    return bool(writes) and writes[-1] == "w"


def matches(pattern: str) -> Predicate:
    return lambda word: re.fullmatch(pattern, word) is not None


LANGUAGES: dict[str, tuple[str, Predicate]] = {
    "tomita1": ("01", lambda word: set(word) <= {"1"}),
    "tomita2": ("01", lambda word: word == "10" * (len(word) // 2)),
    "tomita3": ("01", no_odd_zeros_after_odd_ones),
    "tomita4": ("01", lambda word: "000" not in word),
    "tomita5": ("01", lambda word: word.count("0") % 2 == word.count("1") % 2 == 0),
    "tomita6": ("01", lambda word: (word.count("0") - word.count("1")) % 3 == 0),
    "tomita7": ("01", lambda word: [s for s, _ in groupby("0" + word)] in map(list, RUNS)),
    "flip_flop": ("eiw", one_is_stored),
    "dyck1_depth3": ("()", balanced),
    "dyck1_depth1": ("()", lambda word: balanced(word, 1)),
    "gridworld5": ("LR", at_the_end),
    "gridworld2": ("LR", lambda word: at_the_end(word, 2)),
    **{
        f"regex:{pattern}": (alphabet, matches(pattern))
        for pattern, alphabet in [
            ("(ab)*", "ab"),
            ("(a|b)*abb", "ab"),
            ("a*b", "ab"),
            ("a?b+|ba", "ab"),
            ("(a.){1,2}b*", "ab"),
            ("b{2,3}", "b"),
            ("[a-c]*ca?", "abc"),
            ("(ab|c)*", "abc"),
        ]
    },
}


RUNS = ("0", "01", "010", "0101")


def words(alphabet: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        for word in product(alphabet, repeat=length):
            yield "".join(word)


def longest(alphabet: str) -> int:
    return {1: 8, 2: 8, 3: 5}[len(alphabet)]


@cache
def reference(name: str) -> dict[str, dict[str, Any]]:
    """By word: the names of its classes; there is no answer for what is no prefix any more."""
    alphabet, member = LANGUAGES[name]
    member = cache(member)
    suffixes = list(words(alphabet, SUFFIX))
    numbers: dict[tuple[bool, ...], int] = {}

    def alive(word: str) -> bool:
        return any(member(word + suffix) for suffix in suffixes)

    answers = {}
    for word in words(alphabet, longest(alphabet)):
        state = tuple(member(word + suffix) for suffix in suffixes)
        legal = " ".join(symbol for symbol in alphabet if alive(word + symbol))
        answers[word] = {
            "state": f"q{numbers.setdefault(state, len(numbers))}",
            "membership": "accept" if member(word) else "reject",
            "next_symbols": f"{{{legal}}}" if alive(word) else None,
        }
    return answers


def encode(task: Task, some: list[str]) -> np.ndarray:
    width = max(map(len, some))
    rows = [[task.vocab.index(s) for s in w] + [task.pad] * (width - len(w)) for w in some]
    return np.array(rows, dtype=np.int64)


def decode(task: Task, tokens: np.ndarray) -> list[str]:
    names = ["" if i == task.pad else name for i, name in enumerate(task.vocab)]
    return ["".join(names[token] for token in row) for row in tokens.tolist()]


def draw(task: Task, count: int, length: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Words and the names of their last answers."""
    batch = task.sample(np.random.default_rng(seed), np.full(count, length))
    return decode(task, batch.tokens), [task.vocab[i] for i in batch.targets[:, -1]]


# every symbol may come next at any time, or, in tomita1, but one
ONE_ANSWER = {
    *("tomita1", "tomita5", "tomita6", "flip_flop", "gridworld5", "gridworld2"),
    *("regex:(a|b)*abb", "regex:[a-c]*ca?"),
}


each_case = pytest.mark.parametrize(
    ("name", "predict"),
    [
        (name, predict)
        for name in LANGUAGES
        for predict in ("state", "membership", "next_symbols")
        if predict != "next_symbols" or name not in ONE_ANSWER
    ],
)


each_language = pytest.mark.parametrize("name", LANGUAGES)


each_predict = pytest.mark.parametrize("predict", ["state", "membership", "next_symbols"])


each_supervision = pytest.mark.parametrize("supervision", ["last", "dense"])
