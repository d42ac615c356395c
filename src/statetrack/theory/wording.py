"""Numbers of things, in words."""

from __future__ import annotations

from statetrack.automata import DFA


def counted(number: int, noun: str) -> str:
    """1 layer, 3 layers, 1,200 identities."""
    if number != 1:
        noun = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun}"


def size_of(dfa: DFA) -> str:
    """5 states, 2 symbols."""
    return f"{counted(dfa.states, 'state')}, {counted(len(dfa.alphabet), 'symbol')}"
