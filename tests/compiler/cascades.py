"""Proofs that cascades compute their DFAs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from statetrack.compiler import Cascade
from statetrack.compiler.limits import MAX_PROOF_STATES
from statetrack.compiler.proof import LevelStates, Mistake, Proof, check_levels, explore
from statetrack.compiler.wording import counted


def verify(cascade: Cascade, max_states: int = MAX_PROOF_STATES) -> Proof:
    """Prove that the cascade computes the DFA, or find a word after which it does not.

    By induction down the levels; if that fails, the word is looked for among the first
    `max_states` states of the cascade, breadth first.
    """
    claim = f"the cascade computes the DFA with {counted(cascade.dfa.states, 'state')}"
    tables = [(x.moves, x.out, np.ones(x.moves.shape, dtype=np.bool_)) for x in cascade.levels]
    steps = check_levels(cascade.dfa, cascade.first, cascade.start.tolist(), tables, cascade.tree)
    if steps is not None:
        return Proof(claim, f"all {counted(steps, 'step')} of its levels")
    state = int(cascade.decode(cascade.start[None])[0])
    if state != cascade.dfa.start:
        return Proof(claim, "the start", (), f"state {state} instead of {cascade.dfa.start}")

    def read(symbols: Tensor, before: tuple[LevelStates]) -> tuple[Tensor, tuple[LevelStates]]:
        new = cascade.step(before[0].numbers.numpy(), symbols[:, 0].numpy())
        decoded = torch.from_numpy(cascade.decode(new))[:, None]
        return decoded, (LevelStates(torch.from_numpy(new)),)

    start = (LevelStates(torch.from_numpy(cascade.start[None])),)
    found = explore(read, start, cascade.dfa, max_states)
    if isinstance(found, Mistake):
        return Proof(claim, "its states", *found)
    return Proof(claim, f"all steps from {counted(len(found.dfa_states), 'state')}")
