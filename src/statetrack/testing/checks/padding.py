"""Checks of padding and packing: what is masked is as if it were not there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from statetrack.testing.case import TOLERANCES, Case, error, gradients, row, step_through, worst
from statetrack.testing.check import Measured, check

LENGTHS = torch.tensor([40, 1, 17])  # the longest one is longer than chunks of 32
LEFT = torch.arange(40) >= 40 - LENGTHS[:, None]
RIGHT = torch.arange(40) < LENGTHS[:, None]
EVERY = torch.tensor([[bool(n >> t & 1) for t in range(3)] for n in range(8)])
"""Every mask of 3 tokens, one per row."""
HOLES = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0, 0]]).bool()
PAST = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1]]).bool()
"""Tokens before the first one, by row: states of rows that have read differently many."""


def alone(layer: Any, x: Tensor, mask: Tensor, state: Any) -> Iterator[tuple[int, Tensor, Any]]:
    """Each row that has tokens by itself, without the masked ones: its output and state."""
    for n in range(len(x)):
        if mask[n].any():
            yield n, *layer(x[n : n + 1, mask[n]], row(state, n))


def masked(case: Case, mask: Tensor, past: Tensor) -> Iterator[Measured]:
    """A masked pass against each row by itself: outputs, states, and the exact gradients."""
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        state = case.state(layer, len(mask), past)
        x = case.x(len(mask), mask.shape[1], dtype).requires_grad_()
        y, end = layer(x, state, mask=mask)
        pairs = []
        for n, expected, expected_end in alone(layer, x, mask, state):
            pairs.append((y[n : n + 1, mask[n]], expected))
            where = f"row {n}, {dtype}"
            yield Measured(where, error(*pairs[-1]), tolerance)
            distance = case.state_error(layer, row(end, n), expected_end, tolerance)
            yield Measured(f"state, {where}", distance, tolerance)
        got, wanted = (
            gradients(case.weigh(outputs), [x, *layer.parameters()])
            for outputs in zip(*pairs, strict=True)
        )
        yield Measured(f"gradients, {dtype}", worst(got, wanted), 10 * tolerance)
        yield Measured(f"gradients of masked tokens, {dtype}", float(got[0][~mask].norm()), 0.0)


@check
def left_padding(case: Case) -> Iterator[Measured]:
    """Rows padded on the left equal each row by itself, from states of uneven length, too."""
    yield from masked(case, LEFT, PAST)


@check
def right_padding(case: Case) -> Iterator[Measured]:
    """Rows padded on the right equal each row by itself, from states of uneven length, too."""
    yield from masked(case, RIGHT, PAST)


@check
def holes(case: Case) -> Iterator[Measured]:
    """Any mask equals removing the masked tokens: all 8 masks of 3 tokens."""
    yield from masked(case, EVERY, PAST.repeat(3, 1)[:8])


@check
@torch.no_grad()
def fully_masked(case: Case) -> Iterator[Measured]:
    """A row without tokens keeps its state."""
    mask = torch.tensor([[False] * 6, [True] * 6])
    for dtype in case.dtypes:
        layer = case.layer(dtype)
        x, state = case.x(2, 6, dtype), case.state(layer, 2)
        for which, rows in ((mask, [0]), (torch.zeros_like(mask), [0, 1])):
            _, end = layer(x, state, mask=which)
            for n in rows:
                distance = case.state_error(layer, row(end, n), row(state, n), 0.0)
                yield Measured(f"row {n}, {dtype}", distance, TOLERANCES[dtype])


@check
@torch.no_grad()
def steps_after_padding(case: Case) -> Iterator[Measured]:
    """After a padded pass every row goes on token by token as if it were alone."""
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        x, more = case.x(3, 40, dtype), case.x(3, 3, dtype, seed=13)
        for side, mask in (("left", LEFT), ("right", RIGHT)):
            y, _ = step_through(layer, more, layer(x, mask=mask)[1])
            for n, _, end in alone(layer, x, mask, layer.init_state(3)):
                expected, _ = layer(more[n : n + 1], end)
                where = f"row {n}, padded on the {side}, {dtype}"
                yield Measured(where, error(y[n : n + 1], expected), tolerance)


@check
def garbage_in_padding(case: Case) -> Iterator[Measured]:
    """What the padding holds does not matter: 0, 10,000 and NaN give the same numbers.

    Outputs, states and gradients.
    """
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        state = case.state(layer, 2)
        found = []
        for filling in (0.0, 1e4, torch.nan):
            x = case.x(2, 8, dtype).masked_fill(~HOLES[..., None], filling).requires_grad_()
            y, end = layer(x, state, mask=HOLES)
            slopes = gradients(case.weigh([y[HOLES]]), [x, *layer.parameters()])
            found.append((filling, y[HOLES], end, slopes))
        _, y, end, slopes = found[0]
        for filling, other, other_end, other_slopes in found[1:]:
            where = f"padding of {filling}, {dtype}"
            yield Measured(where, error(other, y), tolerance)
            distance = case.state_error(layer, other_end, end, tolerance)
            yield Measured(f"state, {where}", distance, tolerance)
            yield Measured(f"gradients, {where}", worst(other_slopes, slopes), tolerance)


@check
def packed(case: Case) -> Iterator[Measured]:
    """Sequences packed into one row (`cu_seqlens`) equal separate calls.

    Outputs, states and gradients.
    """
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        for bounds in ([0, 1, 2, 9, 11], [0, 40]):
            x = case.x(1, bounds[-1], dtype).requires_grad_()
            state = case.state(layer, len(bounds) - 1)
            y, end = layer(x, state, cu_seqlens=torch.tensor(bounds))
            parts = []
            for n, (first, last) in enumerate(pairwise(bounds)):
                part, part_end = layer(x[:, first:last], row(state, n))
                parts.append(part)
                distance = case.state_error(layer, row(end, n), part_end, tolerance)
                where = f"sequence {n} of {bounds}, {dtype}"
                yield Measured(f"state, {where}", distance, tolerance)
            expected = torch.cat(parts, 1)
            yield Measured(f"{bounds}, {dtype}", error(y, expected), tolerance)
            got, wanted = (
                gradients(case.weigh([part]), [x, *layer.parameters()]) for part in (y, expected)
            )
            yield Measured(f"gradients, {bounds}, {dtype}", worst(got, wanted), 10 * tolerance)
