"""Automata that tasks of the paper and of the Chomsky suite share; see :meth:`Task.automaton`."""

from __future__ import annotations

from collections.abc import Sequence

from statetrack.automata import DFA, moore_machine

State = tuple[int, ...]
NO_EXPRESSION: State = ()  # after two digits or two operators in a row, or a first operator


def walk_on_cycle(
    alphabet: Sequence[str], steps: Sequence[int], size: int, accept: int = 0
) -> DFA | None:
    """Track the position on a cycle of `size`, from 0; each symbol is a step."""
    return moore_machine(
        alphabet, 0, lambda position, symbol: (position + steps[symbol]) % size, str, str(accept)
    )


def first_and_last(alphabet: Sequence[str], same: str, different: str) -> DFA | None:
    """Compare the first symbol with the last; words in which they differ are accepted."""

    def answer(state: State) -> str | None:
        return (same if state[0] == state[1] else different) if state else None

    def step(state: State, symbol: int) -> State:
        return state[0] if state else symbol, symbol

    nothing_read: State = ()
    return moore_machine(alphabet, nothing_read, step, answer, different)


def sum_of_products(modulus: int) -> DFA | None:
    """Evaluate digits joined by + - * modulo m; * binds tighter, and the value 0 is accepted.

    A state is (total, term, digit_is_due): the sum of the finished terms and, after a digit, the
    unfinished term, or after an operator the factor of the next digit.
    """

    def step(state: State, symbol: int) -> State:
        if not state:
            return NO_EXPRESSION
        total, term, digit_is_due = state
        is_digit = symbol < modulus
        if is_digit != bool(digit_is_due):
            return NO_EXPRESSION
        if is_digit:
            return total, term * symbol % modulus, 0
        if symbol == modulus + 2:
            return total, term, 1
        return (total + term) % modulus, 1 if symbol == modulus else modulus - 1, 1

    def answer(state: State) -> str | None:
        return str((state[0] + state[1]) % modulus) if state and not state[2] else None

    start: State = (0, 1, 1)
    digits = tuple(map(str, range(modulus)))
    return moore_machine((*digits, "+", "-", "*"), start, step, answer, "0")
