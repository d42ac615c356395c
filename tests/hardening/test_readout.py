"""Answers are known where sequences show them, and for all states if they depend on those alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from statetrack.hardening.automaton import StateTokenPairs
from statetrack.hardening.readout import CannotRefitError, find_answers
from statetrack.tasks import IGNORE, Batch

# two states: token 5 flips, token 7 keeps
FLIPS = StateTokenPairs(
    np.array([5, 7]), np.array([[1, 0], [0, 1]]), torch.zeros(4, 1), torch.zeros(4, 1, 1)
)


def batch(tokens: list[list[int]], targets: list[list[int]]) -> Batch:
    lengths = np.array([len(row) for row in tokens])
    return Batch(np.array(tokens), np.array(targets), lengths)


def test_the_state_that_a_token_leads_to_tells_the_answer():
    found = find_answers(FLIPS, batch([[9, 5, 7, 7]], [[IGNORE, 1, IGNORE, 1]]))
    assert found.tolist() == [1, IGNORE, IGNORE, 1]  # (0, 5) and (1, 7) lead to state 1
    found = find_answers(FLIPS, batch([[9, 5, 7, 5]], [[IGNORE, 1, 1, 0]]))
    assert found.tolist() == [1, 0, 0, 1]


def test_state_and_token_tell_the_answer():
    found = find_answers(FLIPS, batch([[9, 5, 7, 5]], [[IGNORE, 1, 2, 0]]))
    assert found.tolist() == [1, IGNORE, 0, 2]


def test_neither_tells_it():
    with pytest.raises(CannotRefitError, match="states do not determine"):
        find_answers(FLIPS, batch([[9, 5, 7, 7]], [[IGNORE, 1, 2, 3]]))
