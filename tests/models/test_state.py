"""Whole models: forward and step agree wherever the sequence is cut, and nothing leaks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from statetrack.errors import UserError
from statetrack.models import SequenceModel
from tests.layers.common import row
from tests.models.common import MODELS, assert_same_states, make_model, tokens
from tests.ops.common import assert_close

T = 7


@pytest.mark.parametrize("config", MODELS)
def test_forward_then_step_cut_at_every_point(config):
    model = make_model(config)
    x = tokens(2, T)
    logits, state = model(x)
    assert logits.shape == (2, T, config.vocab_size)
    for cut in range(T + 1):
        outputs, middle = [], model.init_state(2)
        if cut:
            head, middle = model(x[:, :cut], middle)
            outputs.append(head)
        for token in x[:, cut:].unbind(1):
            one, middle = model.step(token, middle)
            outputs.append(one[:, None])
        assert_close(torch.cat(outputs, 1), logits, 1e-10, f"logits cut at {cut}")
        assert_same_states(middle, state)


@pytest.mark.parametrize("config", MODELS)
def test_forward_then_forward_cut_at_every_point(config):
    model = make_model(config)
    x = tokens(2, T)
    logits, state = model(x)
    for cut in range(1, T):
        head, middle = model(x[:, :cut])
        tail, end = model(x[:, cut:], middle)
        assert_close(torch.cat([head, tail], 1), logits, 1e-10)
        assert_same_states(end, state)


@pytest.mark.parametrize("config", MODELS)
def test_masked_tokens_equal_removed_tokens(config):
    model = make_model(config)
    x = tokens(3, T)
    mask = torch.tensor(
        [[0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0, 0]]
    ).bool()
    logits, state = model(x, mask=mask)
    changed = torch.where(mask, x, (x + 1) % config.vocab_size)
    other, other_state = model(changed, mask=mask)
    assert_close(other[mask], logits[mask], 1e-12)
    assert_same_states(other_state, state, 1e-12)
    for n in range(3):
        expected, end = model(x[n : n + 1, mask[n]])
        assert_close(logits[n, mask[n]], expected[0], 1e-10)
        mine = tuple(row(s, n) for s in state)
        assert_same_states(mine, end)


@pytest.mark.parametrize("config", MODELS)
def test_packed_sequences_equal_separate_calls(config):
    model = make_model(config)
    bounds = [0, 1, 5, 12]
    x = tokens(1, 12)
    logits, state = model(x, cu_seqlens=torch.tensor(bounds))
    again, end = model(x, state, cu_seqlens=torch.tensor(bounds))
    for n, (first, last) in enumerate(pairwise(bounds)):
        expected, middle = model(x[:, first:last])
        assert_close(logits[:, first:last], expected, 1e-10)
        mine = tuple(row(s, n) for s in state)
        assert_same_states(mine, middle)
        expected, middle = model(x[:, first:last], middle)
        assert_close(again[:, first:last], expected, 1e-10)
        mine = tuple(row(s, n) for s in end)
        assert_same_states(mine, middle)


@pytest.mark.parametrize("config", MODELS)
def test_causality(config):
    model = make_model(config)
    x = tokens(1, 40)
    logits, _ = model(x)
    for t in (0, 1, 31, 32, 39):
        changed = x.clone()
        changed[:, t] = (x[:, t] + 1) % config.vocab_size
        other, _ = model(changed)
        assert_close(other[:, :t], logits[:, :t], 1e-12)
        assert (other[:, t] - logits[:, t]).abs().max() > 1e-6


@pytest.mark.parametrize("config", MODELS)
def test_rows_of_a_batch_do_not_see_each_other(config):
    model = make_model(config)
    x = tokens(3, T)
    logits, _ = model(x)
    alone, _ = model(x[1:2])
    assert_close(alone[0], logits[1], 1e-11)


@pytest.mark.parametrize("config", MODELS)
def test_transitions_are_those_of_each_layer_at_its_place(config):
    """Checked by the states: with S_0 set in one layer, its state moves by A_T ... A_1 S_0."""
    model = make_model(config)
    x = tokens(2, T)
    _, without = model(x)
    transitions = model.transitions(x)
    assert len(transitions) == config.num_layers
    for n, transition in enumerate(transitions):
        assert (transition is None) == (config.mixers[n].name == "attention")
        if transition is None:
            continue
        dense = transition.dense()
        zero = model.init_state(2)
        start = torch.ones_like(zero[n][0]).double()
        given = [*zero[:n], zero[n]._replace(**{zero[n]._fields[0]: start}), *zero[n + 1 :]]
        _, with_start = model(x, tuple(given))
        moved = start.reshape(2, *dense.shape[2:4], -1)
        for t in range(T):
            moved = dense[:, t] @ moved
        assert_close((with_start[n][0] - without[n][0]).reshape(moved.shape), moved, 1e-10)


def test_states_of_another_model():
    model, deeper = (
        SequenceModel(config.values[0]) for config in MODELS if config.id in ("delta_net", "hybrid")
    )
    x = tokens(1, 3)
    _, state = deeper(x)
    with pytest.raises(UserError, match="the state has 4 layers, the model 2"):
        model(x, state)
    with pytest.raises(UserError, match="the state has 4 layers, the model 2"):
        model.step(x[:, 0], state)
