"""Masked tokens are as if they were not there; packed sequences as if each were alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.layers.common import (
    LAYERS,
    assert_same_state,
    inputs,
    join,
    make_layer,
    make_state,
    row,
)
from tests.ops.common import assert_close

pytestmark = pytest.mark.parametrize("config", LAYERS)

# Every mask of 5 tokens, one per row: holes, padding on the left, on the right, all and none.
EVERY_MASK = torch.tensor([[bool(n >> t & 1) for t in range(5)] for n in range(32)])
PADDED = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0, 0]]).bool()


def without_the_masked(layer, x, mask, state):
    """Each row by itself, its masked tokens removed."""
    y = torch.zeros_like(x)
    states = []
    for n in range(len(x)):
        end = row(state, n)
        if mask[n].any():
            y_n, end = layer(x[n : n + 1, mask[n]], end)
            y[n, mask[n]] = y_n[0]
        states.append(end)
    return y, join(states)


def test_every_mask_equals_removing_the_masked_tokens(config):
    layer = make_layer(config)
    x, state = inputs(32, 5), make_state(layer, 32)
    y, end = layer(x, state, mask=EVERY_MASK)
    expected, expected_end = without_the_masked(layer, x, EVERY_MASK, state)
    assert_close(y, expected, 1e-11)
    assert_same_state(end, expected_end)
    assert not y[~EVERY_MASK].any()


def test_long_rows_with_holes(config):
    layer = make_layer(config)
    x = inputs(2, 80)
    mask = torch.ones(2, 80, dtype=torch.bool)
    mask[0, :33] = False  # padding on the left
    mask[1, ::3] = False
    mask[1, 70:] = False
    y, end = layer(x, mask=mask)
    zero = layer.init_state(2)
    expected, expected_end = without_the_masked(layer, x, mask, zero)
    assert_close(y, expected, 1e-11)
    assert_same_state(end, expected_end)


def test_a_mask_without_holes_changes_nothing(config):
    layer = make_layer(config)
    x = inputs(2, 7)
    y, end = layer(x, mask=torch.ones(2, 7, dtype=torch.int64))
    expected, expected_end = layer(x)
    assert_close(y, expected, 1e-12)
    assert_same_state(end, expected_end, 1e-12)


def test_a_fully_masked_row_leaves_the_state_untouched(config):
    layer = make_layer(config)
    state = make_state(layer, 2)
    mask = torch.tensor([[False] * 6, [True] * 6])
    y, end = layer(inputs(2, 6), state, mask=mask)
    assert not y[0].any()
    assert all(torch.equal(a, b) for a, b in zip(row(end, 0), row(state, 0), strict=True))
    after, before = row(end, 1)[0], row(state, 1)[0]
    assert after.shape != before.shape or (after - before).abs().max() > 1e-6

    y, end = layer(inputs(2, 6), state, mask=torch.zeros_like(mask))
    assert not y.any()
    assert all(torch.equal(a, b) for a, b in zip(end, state, strict=True))


def test_what_is_masked_does_not_matter(config):
    layer = make_layer(config)
    weights = inputs(2, 8, seed=5)
    results = []
    for masked_values in (0.0, 1.0, -1e4):
        x = inputs(2, 8)
        x[~PADDED] = masked_values
        x.requires_grad_()
        y, end = layer(x, make_state(layer, 2), mask=PADDED)
        loss = (weights * y).sum() + sum(part.sum() for part in end)
        gradients = torch.autograd.grad(loss, [x, *layer.parameters()])
        assert not gradients[0][~PADDED].any()
        results.append([y, *end, *gradients])
    for expected, *others in zip(*results, strict=True):
        for other in others:
            assert torch.equal(other, expected)


def test_not_even_nan_passes_a_mask(config):
    layer = make_layer(config)
    x, state = inputs(2, 8), make_state(layer, 2)
    y, end = layer(x, state, mask=PADDED)
    x[~PADDED] = torch.nan
    same, same_end = layer(x, state, mask=PADDED)
    assert_close(same, y, 1e-12)
    assert_same_state(same_end, end, 1e-12)


def test_gradients_of_masked_rows_equal_those_without_the_masked_tokens(config):
    layer = make_layer(config)
    x, state = inputs(2, 8).requires_grad_(), make_state(layer, 2)
    weights = inputs(2, 8, seed=5)
    gradients = []
    for y, end in (
        layer(x, state, mask=PADDED),
        without_the_masked(layer, x, PADDED, state),
    ):
        loss = (weights * y).sum() + sum(part.sum() for part in end)
        gradients.append(torch.autograd.grad(loss, [x, *layer.parameters()]))
    for masked, expected in zip(*gradients, strict=True):
        assert_close(masked, expected, 1e-10)


@pytest.mark.parametrize(
    "bounds", [[0, 7], [0, 1, 2, 9, 11], [0, 40, 41]], ids=["one", "four", "long-short"]
)
@pytest.mark.parametrize("start", [False, True], ids=["from-zero", "from-a-state"])
def test_packed_sequences_equal_separate_calls(config, bounds, start):
    layer = make_layer(config)
    x = inputs(1, bounds[-1]).requires_grad_()
    sequences = len(bounds) - 1
    state = make_state(layer, sequences) if start else layer.init_state(sequences)
    y, end = layer(x, state if start else None, cu_seqlens=torch.tensor(bounds))
    separate = [
        layer(x[:, first:last], row(state, n)) for n, (first, last) in enumerate(pairwise(bounds))
    ]
    expected = torch.cat([y_n for y_n, _ in separate], 1)
    expected_end = join(end_n for _, end_n in separate)
    assert_close(y, expected, 1e-11)
    assert_same_state(end, expected_end)

    weights = inputs(1, bounds[-1], seed=5)
    parameters = [x, *layer.parameters()]
    got = torch.autograd.grad((weights * y).sum() + end[0].sum(), parameters)
    wanted = torch.autograd.grad((weights * expected).sum() + expected_end[0].sum(), parameters)
    for a, b in zip(got, wanted, strict=True):
        assert_close(a, b, 1e-10)
