"""Numbers of things, in words."""

from __future__ import annotations

from statetrack.automata import DFA

SHOWN = 24  # lines of a list; of a longer one, only a FEW
FEW = 6
LISTED = 8  # names in a line


def abridge(lines: list[str], noun: str) -> list[str]:
    """All lines, or the first few and how many more there are."""
    if len(lines) <= SHOWN:
        return lines
    return [*lines[:FEW], f"and {counted(len(lines) - FEW, f'more {noun}')}"]


def counted(number: int, noun: str) -> str:
    """1 layer, 3 layers, 1,200 identities."""
    if number != 1:
        noun = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun}"


def size_of(dfa: DFA) -> str:
    """5 states and 2 symbols."""
    return f"{counted(dfa.states, 'state')} and {counted(len(dfa.alphabet), 'symbol')}"


def listed(names: list[str], what: str) -> list[str]:
    """The first of some names, and how many there are, if these are many."""
    return names if len(names) <= LISTED else [*names[:LISTED], f"... {len(names):,} {what}"]


def short(symbols: list[str], most: int = 6) -> str:
    """a,b,c,... of a long list."""
    return ",".join(symbols[:most]) + (",..." if len(symbols) > most else "")
