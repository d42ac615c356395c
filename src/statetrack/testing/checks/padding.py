"""Checks of padding and packing: masked positions do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from statetrack.testing.case import Case, gradients, row, step_through, weigh
from statetrack.testing.check import Measured, check

LENGTHS = torch.tensor([40, 1, 17])  # the longest exceeds chunks of 32
LEFT = torch.arange(40) >= 40 - LENGTHS[:, None]
RIGHT = torch.arange(40) < LENGTHS[:, None]
EVERY = torch.tensor([[bool(n >> t & 1) for t in range(3)] for n in range(8)])
"""Every mask of 3 tokens, one per row."""
HOLES = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0, 0]]).bool()
PAST = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1]]).bool()
"""By row, the tokens before the first one: states of rows that have read 4, 0 and 2 tokens."""


def alone(layer: Any, x: Tensor, mask: Tensor, state: Any) -> Iterator[tuple[int, Any]]:
    """Run each row that has tokens by itself, without the masked ones: its number and pass."""
    for n in range(len(x)):
        if mask[n].any():
            yield n, layer(x[n : n + 1, mask[n]], row(state, n))


def masked(case: Case, mask: Tensor, past: Tensor) -> Iterator[Measured]:
    """Compare a masked pass with each row by itself: outputs, states and gradients."""
    mask, past = mask.to(case.device), past.to(case.device)
    state = case.state(len(mask), past)
    x = case.x(*mask.shape).requires_grad_()
    y, end = case.layer(x, state, mask=mask)
    pairs = []
    for n, expected in alone(case.layer, x, mask, state):
        pairs.append((y[n : n + 1, mask[n]], expected[0]))
        yield from case.equal_passes(f"row {n}", (pairs[-1][0], row(end, n)), expected)
    inputs = [x, *case.parameters]
    got, wanted = (gradients(weigh(outputs), inputs) for outputs in zip(*pairs, strict=True))
    yield case.equal("gradients", got, wanted, factor=10)
    yield Measured("gradients of masked tokens", float(got[0][~mask].norm()), 0.0)


@check
def left_padding(case: Case) -> Iterator[Measured]:
    """Rows padded on the left equal each row by itself, also from states of uneven length."""
    yield from masked(case, LEFT, PAST)


@check
def right_padding(case: Case) -> Iterator[Measured]:
    """Rows padded on the right equal each row by itself, also from states of uneven length."""
    yield from masked(case, RIGHT, PAST)


@check
def holes(case: Case) -> Iterator[Measured]:
    """Any mask equals removing the masked tokens: all 8 masks of 3 tokens."""
    yield from masked(case, EVERY, PAST.repeat(3, 1)[:8])


@check
@torch.no_grad()
def fully_masked(case: Case) -> Iterator[Measured]:
    """A row without tokens keeps its state."""
    x, state = case.x(2, 6), case.state(2)
    mask = torch.tensor([[False] * 6, [True] * 6], device=case.device)
    for which, rows in ((mask, [0]), (torch.zeros_like(mask), [0, 1])):
        _, end = case.layer(x, state, mask=which)
        for n in rows:
            same = case.equal_states(f"row {n}", row(end, n), row(state, n), tolerance=0.0)
            yield same._replace(tolerance=case.tolerance)


@check
@torch.no_grad()
def steps_after_padding(case: Case) -> Iterator[Measured]:
    """After a padded pass every row continues token by token as if it were alone."""
    layer, x, more = case.layer, case.x(3, 40), case.x(3, 3, seed=13)
    for side, mask in (("left", LEFT.to(case.device)), ("right", RIGHT.to(case.device))):
        y, _ = step_through(layer, more, layer(x, mask=mask)[1])
        for n, (_, end) in alone(layer, x, mask, layer.init_state(3)):
            expected, _ = layer(more[n : n + 1], end)
            yield case.equal(f"row {n}, padded on the {side}", y[n : n + 1], expected)


@check
def garbage_in_padding(case: Case) -> Iterator[Measured]:
    """The padding's content does not matter: 0, 10,000 and NaN give the same numbers.

    Outputs, states and gradients.
    """
    state, mask = case.state(2), HOLES.to(case.device)
    found = []
    for filling in (0.0, 1e4, torch.nan):
        x = case.x(2, 8).masked_fill(~mask[..., None], filling).requires_grad_()
        y, end = case.layer(x, state, mask=mask)
        slopes = gradients(weigh([y[mask]]), [x, *case.parameters])
        found.append((f"padding of {filling}", (y[mask], end), slopes))
    _, expected, expected_slopes = found[0]
    for where, got, slopes in found[1:]:
        yield from case.equal_passes(where, got, expected)
        yield case.equal(f"gradients, {where}", slopes, expected_slopes)


@check
def packed(case: Case) -> Iterator[Measured]:
    """Sequences packed into one row (`cu_seqlens`) equal separate calls.

    Outputs, states and gradients.
    """
    for bounds in ([0, 1, 2, 9, 11], [0, 40]):
        x = case.x(1, bounds[-1]).requires_grad_()
        state = case.state(len(bounds) - 1)
        y, end = case.layer(x, state, cu_seqlens=torch.tensor(bounds, device=case.device))
        outputs = []
        for n, (first, last) in enumerate(pairwise(bounds)):
            output, own_end = case.layer(x[:, first:last], row(state, n))
            outputs.append(output)
            yield case.equal_states(f"state, sequence {n} of {bounds}", row(end, n), own_end)
        expected = torch.cat(outputs, 1)
        yield case.equal(f"{bounds}", y, expected)
        inputs = [x, *case.parameters]
        got, wanted = (gradients(weigh([part]), inputs) for part in (y, expected))
        yield case.equal(f"gradients, {bounds}", got, wanted, factor=10)
