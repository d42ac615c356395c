"""Checks of sequences and states: the same numbers wherever a sequence is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from statetrack.testing.case import Case, map_state, same_bits, step_through, tensors
from statetrack.testing.check import Measured, check

SHORT_LENGTH = 6
LONG_LENGTH = 515
LONG_CUTS = [0, 1, 32, 63, 96, 160, 161, 289, 514, 515]
"""Pieces of 1, 31, 33, 64, 128 and 225 tokens: near the chunk sizes of common backends."""


@check
@torch.no_grad()
def chunks(case: Case) -> Iterator[Measured]:
    """One pass equals two passes, wherever the sequence is cut, from the first state or another."""
    layer, x = case.layer, case.x(2, SHORT_LENGTH)
    for start in (None, case.state(2)):
        whole = layer(x, start)
        for cut in range(1, SHORT_LENGTH):
            head, middle = layer(x[:, :cut], start)
            tail, state = layer(x[:, cut:], middle)
            pieces = torch.cat([head, tail], 1), state
            yield from case.equal_passes(f"cut at {cut} of {SHORT_LENGTH}", pieces, whole)


@check
@torch.no_grad()
def steps(case: Case) -> Iterator[Measured]:
    """One pass equals token by token, and either can continue the other at any token."""
    layer, x = case.layer, case.x(2, SHORT_LENGTH)
    for start in (layer.init_state(2), case.state(2)):
        y, end = layer(x, start)
        stepped, states = step_through(layer, x, start)
        yield from case.equal_passes("all steps", (stepped, states[-1]), (y, end))
        for cut in range(1, SHORT_LENGTH):
            tail, _ = layer(x[:, cut:], states[cut])
            yield case.equal(f"{cut} steps, then a pass", tail, y[:, cut:])
            _, middle = layer(x[:, :cut], start)
            y_t, _ = layer.step(x[:, cut], middle)
            yield case.equal(f"a pass over {cut}, then a step", y_t, y[:, cut])


@check
@torch.no_grad()
def decoder(case: Case) -> Iterator[Measured]:
    """A `decoder`, if the layer has one, equals steps, from the first state or another."""
    for batch in (1, 3):
        x, recorded = case.x(batch, SHORT_LENGTH), case.layer.decoder(batch)
        for start in (case.layer.init_state(batch), case.state(batch)):
            before = [part.clone() for part in tensors(start)]
            decoded, ends = step_through(recorded, x, start)
            expected, states = step_through(case.layer, x, start)
            yield from case.equal_passes(
                f"batch {batch}", (decoded, ends[-1]), (expected, states[-1])
            )
            yield same_bits(f"the first state, batch {batch}", start, before)
            again, _ = step_through(recorded, x, start)
            yield same_bits(f"the same sequence again, batch {batch}", again, decoded)


@check
@torch.no_grad()
def single_token(case: Case) -> Iterator[Measured]:
    """A pass over one token (T = 1) equals a step and the first token of a longer pass."""
    layer = case.layer
    for batch in (1, 3):
        x, state = case.x(batch, 2), case.state(batch)
        y, end = layer(x[:, :1], state)
        yield case.equal(f"longer pass, batch {batch}", layer(x, state)[0][:, :1], y)
        step = layer.step(x[:, 0], state)
        yield from case.equal_passes(f"step, batch {batch}", step, (y[:, 0], end))


@check
@torch.no_grad()
def long_sequences(case: Case) -> Iterator[Measured]:
    """515 tokens in one pass equal uneven pieces, in float32 as in the exact dtype."""
    layer, x = case.layer, case.x(1, LONG_LENGTH)
    whole = layer(x)
    state, outputs = layer.init_state(1), []
    for first, last in pairwise(LONG_CUTS):
        piece, state = layer(x[:, first:last], state)
        outputs.append(piece)
    yield from case.equal_passes("pieces", (torch.cat(outputs, 1), state), whole)
    if case.dtype is not case.exact:
        exact, _ = case.at().layer(x.to(case.exact))
        yield case.equal(f"against {case.exact}", whole[0], exact)


@check
@torch.no_grad()
def first_state(case: Case) -> Iterator[Measured]:
    """A pass without a state equals a pass from `init_state`, bit for bit."""
    x = case.x(2, SHORT_LENGTH)
    y, end = case.layer(x)
    same, same_end = case.layer(x, case.layer.init_state(2))
    yield same_bits("output", same, y)
    yield case.equal_states("state", same_end, end, tolerance=0.0)


@check
@torch.no_grad()
def rows(case: Case) -> Iterator[Measured]:
    """Rows of a batch are independent, and rows of a state can be selected, as in beam search."""
    beams = torch.tensor([2, 0, 0, 1], device=case.device)
    layer, x = case.layer, case.x(3, SHORT_LENGTH)
    y, _ = layer(x)
    for n in range(3):
        yield case.equal(f"row {n} alone", layer(x[n : n + 1])[0], y[n : n + 1])
    _, state = layer(x[:, :5])
    selected = map_state(lambda part: part[beams], state)
    yield case.equal("selected rows", layer(x[beams, 5:], selected)[0], y[beams, 5:])


@check
def states_kept(case: Case) -> Iterator[Measured]:
    """A pass and a step do not change the state that they are given, whose tensors begin with B."""
    layer, x = case.layer, case.x(3, 40)
    with torch.no_grad():
        state = case.state(3)
        parts = tensors(state)
        batches = {len(part) for part in parts}
        if batches != {3}:
            raise AssertionError(f"tensors of a state for batch 3 have batches {batches}")
        before = [part.clone() for part in parts]
        layer(x, state)
        for _ in range(2):  # the second step must not depend on what the first one cached
            layer.step(x[:, 0], state)
    layer(x, state)[0].sum().backward()
    for n, (part, copy) in enumerate(zip(parts, before, strict=True)):
        yield same_bits(f"tensor {n} of the state", part, copy)
