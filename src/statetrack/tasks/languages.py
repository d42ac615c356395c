"""Named regular languages: Tomita's, flip-flop, bounded Dyck, gridworlds, random DFAs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from statetrack.automata import DFA
from statetrack.automata.search import reach
from statetrack.errors import UserError

NAMED = (
    *(f"tomita{n}" for n in range(1, 8)),
    "flip_flop",
    "dyck1_depth3",
    "gridworld5",
    "random_dfa8_seed0",
)
MAX_TASK_STATES = 1024  # of the minimal DFA of a task
REACHED = 0.7968  # share of the states that a large random DFA reaches: x = 1 - exp(-2x)


@cache
def named_language(name: str) -> DFA | None:
    """Return the minimal DFA called `name`, or None if there is none."""
    for pattern, make in _MAKERS.items():
        match = re.fullmatch(pattern, name)
        if match:
            numbers = [int(n) for n in match.groups()]
            check_size(name, max(numbers[:1], default=0))
            return make(*numbers).minimal()
    return None


def check_size(name: str, states: int) -> None:
    """Raise a UserError if a task would have too many states."""
    if states > MAX_TASK_STATES:
        raise UserError(f"{name} is too large: at most {MAX_TASK_STATES:,} states are supported")


def _tomita(n: int) -> DFA:
    """Tomita's languages over {0, 1}; each row is (next state on 0, on 1)."""
    table, accepting = {
        1: ([(1, 0), (1, 1)], [0]),  # 1*
        2: ([(2, 1), (0, 2), (2, 2)], [0]),  # (10)*
        # no odd run of zeros anywhere after an odd run of ones
        3: ([(0, 1), (2, 0), (3, 4), (2, 3), (4, 4)], [0, 1, 3]),
        4: ([(1, 0), (2, 0), (3, 0), (3, 3)], [0, 1, 2]),  # no 000
        5: ([(1, 2), (0, 3), (3, 0), (2, 1)], [0]),  # an even number of zeros and of ones
        6: ([(1, 2), (2, 0), (0, 1)], [0]),  # as many zeros as ones, modulo 3
        7: ([(0, 1), (2, 1), (2, 3), (4, 3), (4, 4)], [0, 1, 2, 3]),  # 0*1*0*1*
    }[n]
    return _dfa("01", table, accepting)


def _flip_flop() -> DFA:
    """One bit: w sets it to 1, e to 0, i keeps it; words that leave 1 are accepted."""
    return _dfa("eiw", [(0, 0, 1), (0, 1, 1)], [1])


def _dyck(depth: int) -> DFA:
    """Balanced brackets of depth at most `depth`; the last state is the sink."""
    sink = depth + 1
    rows = [(min(d + 1, sink), d - 1 if d else sink) for d in range(depth + 1)]
    return _dfa("()", [*rows, (sink, sink)], [0])


def _gridworld(size: int) -> DFA:
    """A corridor of `size` fields; L and R move, walls stop; the last field accepts."""
    rows = [(max(i - 1, 0), min(i + 1, size - 1)) for i in range(size)]
    return _dfa("LR", rows, [size - 1])


def _random(states: int, seed: int) -> DFA:
    """Draw a minimal DFA over {a, b} with exactly `states` states, all equally likely.

    A random table hardly ever reaches all its states. So a larger one is drawn, again and again,
    until its reachable part has the wanted size and is minimal.
    """
    rng = np.random.default_rng([states, seed])
    size = round(states / REACHED)
    while True:
        delta = rng.integers(0, size, (size, 2))
        accepting = rng.random(size) < 0.5
        if len(reach(0, delta.tolist().__getitem__).states) == states:
            dfa = DFA(("a", "b"), delta, 0, accepting).minimal()
            if dfa.states == states:
                return dfa


def _dfa(alphabet: str, rows: Sequence[Sequence[int]], accepting: list[int]) -> DFA:
    accepts = np.zeros(len(rows), dtype=bool)
    accepts[accepting] = True
    return DFA(tuple(alphabet), np.array(rows), 0, accepts)


_MAKERS: dict[str, Callable[..., DFA]] = {
    r"tomita([1-7])": _tomita,
    r"flip_flop": _flip_flop,
    r"dyck1_depth([1-9][0-9]{0,3})": _dyck,
    r"gridworld([2-9]|[1-9][0-9]{1,3})": _gridworld,
    r"random_dfa([2-9]|[1-9][0-9]{1,3})_seed([0-9]{1,9})": _random,
}
