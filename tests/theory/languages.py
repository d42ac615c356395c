"""Languages with a name, random automata, and words that do not end in a sink at once."""

from __future__ import annotations

import numpy as np
import torch

from statetrack.automata import DFA, Group, from_regex, group
from statetrack.tasks import make_task
from statetrack.tasks.languages import named_language


def _named(name: str) -> DFA:
    dfa = named_language(name)
    assert dfa is not None
    return dfa


def _arithmetic() -> DFA:
    dfa = make_task("modular_arithmetic").automaton()
    assert dfa is not None
    return dfa


LANGUAGES: dict[str, DFA | Group] = {
    "parity": from_regex("(b*ab*a)*b*"),
    **{name: group(name) for name in ("Z3", "Z5", "Z60", "S3", "S5", "A5", "D12")},
    **{f"Tomita {n}": _named(f"tomita{n}") for n in range(1, 8)},
    "(ab)*": from_regex("(ab)*"),
    "a*b*": from_regex("a*b*"),
    "contains aba": from_regex(".*aba.*", "ab"),
    "Dyck": _named("dyck1_depth3"),
    "flip-flop": _named("flip_flop"),
    "arithmetic modulo 5": _arithmetic(),
}
STAR_FREE = (
    "Tomita 1", "Tomita 2", "Tomita 4", "Tomita 7", "(ab)*", "a*b*", "contains aba", "Dyck",
    "flip-flop",
)  # fmt: skip
ONE_LAYER = (
    "parity", "Z3", "Z5", "Z60", "S3", "S5", "A5", "D12", "Tomita 1", "Tomita 2", "Tomita 5",
    "Tomita 6", "(ab)*", "Dyck", "flip-flop",
)  # fmt: skip


def random_dfa(rng: np.random.Generator, states: int, symbols: int = 2) -> DFA:
    delta = rng.integers(states, size=(states, symbols))
    return DFA(tuple("abcd"[:symbols]), delta, 0, rng.random(states) < 0.5)


def random_minimal(states: int, seed: int) -> DFA:
    """Minimal, with exactly so many states, and two symbols."""
    return _named(f"random_dfa{states}_seed{seed}")


def lively_word(dfa: DFA, length: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, length] random symbols, none of which leads to where nothing changes; and the states."""
    sinks = (dfa.delta == np.arange(dfa.states)[:, None]).all(axis=1)
    choices = [np.flatnonzero(~sinks[row]).tolist() for row in dfa.delta]
    draws = np.random.default_rng(seed).integers(2**31, size=length).tolist()
    table = dfa.delta.tolist()
    word, states, state = [], [], dfa.start
    for draw in draws:
        allowed = choices[state] or range(len(dfa.alphabet))
        symbol = allowed[draw % len(allowed)]
        word.append(symbol)
        state = table[state][symbol]
        states.append(state)
    return torch.tensor([word]), torch.tensor([states])
