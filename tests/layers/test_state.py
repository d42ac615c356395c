"""Wherever a sequence is cut, forward and step give what one forward over all of it gives."""

from __future__ import annotations

import pytest
import torch

from tests.layers.common import (
    LAYERS,
    assert_same_state,
    inputs,
    make_layer,
    make_state,
    step_through,
)
from tests.ops.common import assert_close

pytestmark = pytest.mark.parametrize("config", LAYERS)


@pytest.mark.parametrize("start", [False, True], ids=["from-zero", "from-a-state"])
def test_forward_then_step_cut_at_every_point(config, start):
    layer = make_layer(config)
    x = inputs(2, 9)
    first = make_state(layer, 2) if start else None
    y, state = layer(x, first)
    for cut in range(10):
        outputs, middle = [], first or layer.init_state(2)
        if cut > 0:
            head, middle = layer(x[:, :cut], middle)
            outputs.append(head)
        if cut < 9:
            tail, middle = step_through(layer, x[:, cut:], middle)
            outputs.append(tail)
        assert_close(torch.cat(outputs, 1), y, 1e-11, f"output cut at {cut}")
        assert_same_state(middle, state)


def test_forward_then_forward_cut_at_every_point(config):
    layer = make_layer(config)
    x = inputs(2, 9)
    y, state = layer(x)
    for cut in range(1, 9):
        head, middle = layer(x[:, :cut])
        tail, end = layer(x[:, cut:], middle)
        assert_close(torch.cat([head, tail], 1), y, 1e-11, f"output cut at {cut}")
        assert_same_state(end, state)


@pytest.mark.parametrize("cut", [31, 32, 33, 64])
def test_cuts_about_the_chunks_of_the_backend(config, cut):
    layer = make_layer(config)
    x = inputs(1, 70)
    y, state = layer(x)
    head, middle = layer(x[:, :cut])
    tail, end = step_through(layer, x[:, cut:], middle)
    assert_close(torch.cat([head, tail], 1), y, 1e-11)
    assert_same_state(end, state)


def test_the_zero_state_is_the_default(config):
    layer = make_layer(config)
    x = inputs(2, 5)
    y, state = layer(x, layer.init_state(2))
    default, end = layer(x)
    assert torch.equal(default, y)
    assert_same_state(end, state, 0)
    assert all(not part.any() for part in layer.init_state(2))


def test_state_is_an_immutable_named_tuple_of_batch_first_tensors(config):
    layer = make_layer(config)
    _, state = layer(inputs(3, 5))
    empty = layer.init_state(3)
    assert isinstance(state, tuple)
    assert type(state) is type(empty)
    assert layer._layout(state) == layer._layout(empty)  # the same shapes, where they are fixed
    assert [part.dtype.is_floating_point for part in state] == [
        part.dtype.is_floating_point for part in empty
    ]
    assert {part.shape[0] for part in state} == {3}
    for field in state._fields:
        with pytest.raises(AttributeError):
            setattr(state, field, getattr(empty, field))


def test_calls_leave_the_state_they_are_given_as_it_was(config):
    layer = make_layer(config)
    state = make_state(layer, 2)
    before = [part.clone() for part in state]
    layer(inputs(2, 40), state)
    layer(inputs(2, 4), state, mask=torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]]).bool())
    layer.step(inputs(2, 1)[:, 0], state)
    for part, copy in zip(state, before, strict=True):
        assert torch.equal(part, copy)


def test_reordering_the_batch_of_a_state(config):
    """As in beam search: some rows go on twice, others end."""
    layer = make_layer(config)
    x = inputs(3, 8)
    beams = torch.tensor([2, 0, 0, 1])
    _, state = layer(x[:, :5])
    chosen = type(state)(*(part[beams] for part in state))
    y, end = step_through(layer, x[beams, 5:], chosen)
    whole, expected = layer(x[beams])
    assert_close(y, whole[:, 5:], 1e-11)
    assert_same_state(end, expected)


def test_gradients_flow_through_a_state(config):
    layer = make_layer(config)
    x = inputs(2, 10).requires_grad_()
    weights = inputs(2, 4, seed=5)
    parameters = [x, *layer.parameters()]

    y, _ = layer(x)
    whole = torch.autograd.grad((weights * y[:, 6:]).sum(), parameters)
    _, state = layer(x[:, :6])
    tail, _ = layer(x[:, 6:], state)
    cut = torch.autograd.grad((weights * tail).sum(), parameters)
    _, state = layer(x[:, :6])
    tail, _ = step_through(layer, x[:, 6:], state)
    stepped = torch.autograd.grad((weights * tail).sum(), parameters)

    assert whole[0][:, :6].abs().max() > 1e-6
    for expected, *others in zip(whole, cut, stepped, strict=True):
        for other in others:
            assert_close(other, expected, 1e-10)


def test_a_detached_state_cuts_the_gradient(config):
    layer = make_layer(config)
    x = inputs(1, 10).requires_grad_()
    _, state = layer(x[:, :6])
    y, _ = layer(x[:, 6:], type(state)(*(part.detach() for part in state)))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert not gradient[:, :6].any()
    assert gradient[:, 6:].abs().max() > 1e-6


def test_the_past_does_not_see_the_future(config):
    layer = make_layer(config)
    x = inputs(1, 40)
    y, _ = layer(x)
    for t in (0, 17, 39):
        changed = x.clone()
        changed[:, t] += 1
        other, _ = layer(changed)
        assert_close(other[:, :t], y[:, :t], 1e-12)
        assert (other[:, t] - y[:, t]).abs().max() > 1e-6
