"""Checks of sequences and states: wherever a sequence is cut, the numbers are the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from statetrack.testing.case import TOLERANCES, Case, error, map_state, step_through, tensors
from statetrack.testing.check import Measured, check

LENGTH = 6
LONG = 515
LONG_CUTS = [0, 1, 32, 63, 96, 160, 161, 289, 514, 515]
"""Pieces of 1, 31, 33, 64, 128 and 225 tokens: about the sizes of chunks in common backends."""


@check
@torch.no_grad()
def chunks(case: Case) -> Iterator[Measured]:
    """One pass equals two passes, wherever the sequence is cut, from the first state or another."""
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        x = case.x(2, LENGTH, dtype)
        for start in (None, case.state(layer, 2)):
            y, end = layer(x, start)
            for cut in range(1, LENGTH):
                head, middle = layer(x[:, :cut], start)
                tail, state = layer(x[:, cut:], middle)
                where = f"cut at {cut} of {LENGTH}, {dtype}"
                yield Measured(where, error(torch.cat([head, tail], 1), y), tolerance)
                distance = case.state_error(layer, state, end, tolerance)
                yield Measured(f"state, {where}", distance, tolerance)


@check
@torch.no_grad()
def steps(case: Case) -> Iterator[Measured]:
    """One pass equals token by token, and each takes over from the other at any token."""
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        x = case.x(2, LENGTH, dtype)
        for start in (layer.init_state(2), case.state(layer, 2)):
            y, end = layer(x, start)
            stepped, states = step_through(layer, x, start)
            yield Measured(f"all steps, {dtype}", error(stepped, y), tolerance)
            distance = case.state_error(layer, states[-1], end, tolerance)
            yield Measured(f"state after all steps, {dtype}", distance, tolerance)
            for cut in range(1, LENGTH):
                tail, _ = layer(x[:, cut:], states[cut])
                where = f"{cut} steps, then a pass, {dtype}"
                yield Measured(where, error(tail, y[:, cut:]), tolerance)
                _, middle = layer(x[:, :cut], start)
                y_t, _ = layer.step(x[:, cut], middle)
                where = f"a pass over {cut}, then a step, {dtype}"
                yield Measured(where, error(y_t, y[:, cut]), tolerance)


@check
@torch.no_grad()
def single_token(case: Case) -> Iterator[Measured]:
    """A pass over one token (T = 1) equals a step and the first token of a longer pass."""
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        for batch in (1, 3):
            x, state = case.x(batch, 2, dtype), case.state(layer, batch)
            y, end = layer(x[:, :1], state)
            y_t, stepped = layer.step(x[:, 0], state)
            where = f"batch {batch}, {dtype}"
            yield Measured(f"longer pass, {where}", error(layer(x, state)[0][:, :1], y), tolerance)
            yield Measured(f"step, {where}", error(y_t, y[:, 0]), tolerance)
            distance = case.state_error(layer, stepped, end, tolerance)
            yield Measured(f"state, {where}", distance, tolerance)


@check
@torch.no_grad()
def long_sequences(case: Case) -> Iterator[Measured]:
    """515 tokens in one pass equal uneven pieces, in float32 as in the exact number type."""
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        x = case.x(1, LONG, dtype)
        y, end = layer(x)
        state, outputs = layer.init_state(1), []
        for first, last in pairwise(LONG_CUTS):
            part, state = layer(x[:, first:last], state)
            outputs.append(part)
        yield Measured(f"pieces, {dtype}", error(torch.cat(outputs, 1), y), tolerance)
        distance = case.state_error(layer, state, end, tolerance)
        yield Measured(f"state, {dtype}", distance, tolerance)
        if dtype is not case.exact:
            expected, _ = case.layer()(x.to(case.exact))
            yield Measured(f"{dtype} against {case.exact}", error(y, expected), tolerance)


@check
@torch.no_grad()
def first_state(case: Case) -> Iterator[Measured]:
    """A pass without a state equals a pass from `init_state`, bit for bit."""
    for dtype in case.dtypes:
        layer = case.layer(dtype)
        x = case.x(2, LENGTH, dtype)
        y, end = layer(x)
        same, same_end = layer(x, layer.init_state(2))
        yield Measured(f"output, {dtype}", error(same, y), 0.0)
        yield Measured(f"state, {dtype}", case.state_error(layer, same_end, end, 0.0), 0.0)


@check
@torch.no_grad()
def rows(case: Case) -> Iterator[Measured]:
    """Rows of a batch do not depend on each other, and a state's rows can be chosen by index.

    As in beam search: some rows go on twice, others end.
    """
    beams = torch.tensor([2, 0, 0, 1])
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
        x = case.x(3, LENGTH, dtype)
        y, _ = layer(x)
        for n in range(3):
            alone, _ = layer(x[n : n + 1])
            yield Measured(f"row {n} alone, {dtype}", error(alone, y[n : n + 1]), tolerance)
        _, state = layer(x[:, :5])
        chosen = map_state(lambda part: part[beams], state)
        tail, _ = layer(x[beams, 5:], chosen)
        yield Measured(f"chosen rows, {dtype}", error(tail, y[beams, 5:]), tolerance)


@check
def states_kept(case: Case) -> Iterator[Measured]:
    """A pass and a step leave the state that they are given as it was, bit for bit.

    And batches are the first dimension of all of a state's tensors.
    """
    for dtype in case.dtypes:
        layer = case.layer(dtype)
        x = case.x(3, 40, dtype)
        with torch.no_grad():
            state = case.state(layer, 3)
            parts = tensors(state)
            batches = {len(part) for part in parts}
            if batches != {3}:
                raise AssertionError(f"tensors of a state for batch 3 have batches {batches}")
            before = [part.clone() for part in parts]
            layer(x, state)
            for _ in range(2):  # what a first step leaves behind must not matter either
                layer.step(x[:, 0], state)
        layer(x, state)[0].sum().backward()
        for n, (part, copy) in enumerate(zip(parts, before, strict=True)):
            yield Measured(f"tensor {n} of the state, {dtype}", error(part, copy), 0.0)
