"""Infer from the answers what an input that a head ignores should do.

Heads may share the work: of the heads of a model that adds modulo 5, one may count all elements but
3, and others count the 3s by slow rotations, which no finite group has. If the first head has the
task's group, the sequences of the training lengths show which element the 3 is: with it, and with
no other, the answer depends on the head's state alone.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.hardening.representations import EXACT, MAX_VOTED_SIZE, Representation
from statetrack.tasks import IGNORE

Ints = NDArray[np.int64]
MAX_CHOICES = 256  # of elements for all inputs that a head ignores


def infer_ignored(given: Representation, index: Tensor, targets: Tensor) -> Representation | None:
    """Return the same with elements for the inputs that a head ignores.

    Args:
        given: a head's matrices for n inputs; the identity for those that it ignores.
        index: [B, T], which of the n inputs occurs, -1 for none.
        targets: [B, T], the answers, or IGNORE.

    Returns:
        The matrices with which the head's state determines the answers; None if there are none, or
        if there are too many to try. Inputs whose matrix is inferred do not count as fitting.
    """
    moves = (given.matrices - given.elements[0]).flatten(1).norm(dim=1) > EXACT
    ignored = torch.nonzero(~moves).flatten().tolist()
    size = len(given.elements)
    if size > MAX_VOTED_SIZE or size ** len(ignored) > MAX_CHOICES:
        return None
    flat = given.elements.flatten(1)
    known = torch.cdist(given.matrices.flatten(1), flat).argmin(1).numpy()
    products = given.elements[:, None] @ given.elements  # [g, g, d, d]
    table = torch.cdist(products.flatten(0, 1).flatten(1), flat).argmin(1).view(size, size).numpy()
    scored = ((targets != IGNORE) & (index >= 0)).numpy()  # at a BOS the answer is another one
    for elements in product(range(size), repeat=len(ignored)):  # first of all, the identity
        tried = known.copy()
        tried[ignored] = elements
        states = _states(table, tried, index.numpy())
        if unanimous(states[scored], targets.numpy()[scored], size) is not None:
            fits = given.fits & torch.from_numpy(tried == known)
            return replace(given, matrices=given.elements[tried], fits=fits)
    return None


def _states(table: Ints, elements: Ints, index: Ints) -> Ints:
    """Return the element [B, T] that the inputs up to each position multiply to."""
    state = np.zeros(len(index), np.int64)
    states = []
    for which in index.T:
        state = np.where(which >= 0, table[elements[which], state], state)
        states.append(state)
    return np.stack(states, 1)


def unanimous(places: Ints, answers: Ints, n: int) -> Ints | None:
    """Return the answer at each of n places, IGNORE where there is none; None if two differ."""
    found = np.full(n, IGNORE, np.int64)
    found[places] = answers
    return found if (found[places] == answers).all() else None
