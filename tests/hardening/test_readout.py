"""Answers are known where sequences show them, and for all states if they depend on those alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from statetrack.hardening.automaton import StateTokenPairs
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.readout import CannotRefitError, clarity, clear_queries, find_answers
from statetrack.layers import DeltaProductConfig
from statetrack.models import ModelConfig, SequenceModel
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


def test_clarity():
    states = torch.zeros(3, 2, 2).double()
    states[0, 0, 0], states[1, 0, 1], states[2, 0, 0] = 1.0, 0.5, -2.0
    states[:, 1] = 1.0
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    known, unknown = torch.tensor([0, 1, 1]), torch.tensor([0, IGNORE, 0])
    # the weakest read is a quarter of the strongest; the second query reads all states alike
    assert clarity(queries, states, known).tolist() == [0.25, 0.0]
    assert clarity(queries, states, unknown).tolist() == [0.25, 1.0]
    states[1, 0, 1] = 1.9  # the first two are 90 degrees apart, or 5
    states[0, 0] = torch.tensor([math.sin(math.radians(5)), math.cos(math.radians(5))])
    near = 2 * math.sin(math.radians(2.5))
    assert clarity(queries[:1], states, known).item() == pytest.approx(near)


def test_queries_that_read_two_answers_alike_are_replaced():
    """Tokens 5 and 7 lead from either of two states to the first and the second."""
    mixer = DeltaProductConfig(allow_neg_eigval=True, num_heads=1, conv_size=0)
    config = ModelConfig(10, hidden_size=16, num_layers=1, mixer=mixer, norm="none")
    model = SequenceModel(config).double()
    answered = batch([[9, 5, 7, 5]], [[IGNORE, 3, 4, 3]])
    inputs = LayerInputs.of_tokens(model, answered)
    layer = inputs.mixer(model)
    q = torch.zeros(3, 1, 16).double()
    q[..., 0] = 1.0
    layer.set_queries(inputs.x, q)
    states = torch.zeros(2, 16, 16).double()
    states[:, 0, 0], states[0, 1, 1], states[1, 1, 2] = 1.0, 1.0, 1.0  # differ in the second row
    listed = states.flatten(1)[:, None].repeat_interleave(2, 0)
    found = StateTokenPairs(
        np.array([5, 7]), np.array([[0, 1], [0, 1]]), torch.zeros(4, 16), listed
    )
    made = clear_queries(layer, inputs, found, answered, [0])
    assert made[~inputs.recurring].equal(layer.queries(inputs.x)[~inputs.recurring])  # of BOS
    reads = torch.einsum("nk,skv->nsv", made[inputs.recurring, 0], states)
    assert (torch.nn.functional.normalize(reads, dim=-1).diff(dim=1).norm(dim=-1) > 1).all()
    layer.set_queries(inputs.x, made)
    assert clear_queries(layer, inputs, found, answered, [0]) is None
    alike = batch([[9, 5, 7, 5]], [[IGNORE, 3, 3, 3]])
    layer.set_queries(inputs.x, q)
    assert clear_queries(layer, inputs, found, alike, [0]) is None
