"""Languages that compiled networks are measured and tested on, and long words for them."""

from __future__ import annotations

import numpy as np
import torch

from statetrack.automata import DFA, Group
from statetrack.compiler.text_to_dfa import find_dfa, find_language

TEXTS = (
    "parity", "Z3", "Z5", "Z60", "S3", "S5", "A5", "D12", "tomita1", "tomita2", "tomita3",
    "tomita4", "tomita5", "tomita6", "tomita7", "(ab)*", "a*b*", "[ab]*aba[ab]*", "dyck1_depth3",
    "flip_flop", "modular_arithmetic",
)  # fmt: skip
LANGUAGES: dict[str, DFA | Group] = {text: find_language(text).value for text in TEXTS}


def random_minimal(states: int, seed: int) -> DFA:
    """Return a minimal random DFA with so many states and two symbols."""
    return find_dfa(f"random_dfa{states}_seed{seed}")


def lively_word(dfa: DFA, length: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random symbols [1, length] that avoid sinks, and the states after each."""
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
