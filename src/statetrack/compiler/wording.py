"""Counts with their nouns, and long lists cut short, for messages and reports."""

from __future__ import annotations

from statetrack.automata import DFA

SHOWN = 24  # a list of up to SHOWN lines is printed whole, ...
FEW = 6  # ... of a longer one only the first FEW lines
LISTED = 8  # names that one line lists at most


def abridge(lines: list[str], noun: str) -> list[str]:
    """Return all lines if they are at most SHOWN, else the first FEW and "and 20 more states"."""
    if len(lines) <= SHOWN:
        return lines
    return [*lines[:FEW], f"and {counted(len(lines) - FEW, f'more {noun}')}"]


def counted(number: int, noun: str) -> str:
    """Return the number and its noun, in the plural unless it is 1: "1 layer", "1,200 words"."""
    if number != 1:
        noun = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun}"


def size_of(dfa: DFA) -> str:
    """Return the size of a DFA: "5 states and 2 symbols"."""
    return f"{counted(dfa.states, 'state')} and {counted(len(dfa.alphabet), 'symbol')}"


def listed(names: list[str], what: str) -> list[str]:
    """Return all names if they are at most LISTED, else the first and the total "... 30 states"."""
    return names if len(names) <= LISTED else [*names[:LISTED], f"... {len(names):,} {what}"]


def short(symbols: list[str], most: int = 6) -> str:
    """Join at most `most` symbols by commas; "a,b,c,..." if there are more."""
    return ",".join(symbols[:most]) + (",..." if len(symbols) > most else "")
