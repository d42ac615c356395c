"""Infer from the answers the group elements of inputs that a head ignores.

Heads may share the work. For example, in a model that adds modulo 5, one head may rotate correctly
for every token except 3, for which it does nothing; other heads count the 3s by small angles that
generate no finite group. So every element of the first head's group is tried for the 3: the right
one makes the answer a function of the head's state.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from statetrack.hardening.exploration import Ints
from statetrack.hardening.representations import EXACT, MAX_VOTED_SIZE, Representation
from statetrack.tasks import IGNORE

MAX_CHOICES = 256  # assignments of elements to the ignored inputs that are tried


def infer_ignored(given: Representation, index: Tensor, targets: Tensor) -> Representation | None:
    """Return the representation with elements for the inputs that a head ignores.

    Args:
        given: a head's matrices for n inputs; the identity for those that it ignores.
        index: [B, T], which of the n inputs occurs, -1 for none.
        targets: [B, T], the answers, or IGNORE.

    Returns:
        The matrices with which the head's state determines the answers; None if there are none, or
        if there are too many to try. Inputs whose matrix is inferred have `fits` False.
    """
    moves = (given.matrices - given.elements[0]).flatten(1).norm(dim=1) > EXACT
    ignored = torch.nonzero(~moves).flatten().tolist()
    size = len(given.elements)
    if size > MAX_VOTED_SIZE or size ** len(ignored) > MAX_CHOICES:
        return None
    flat = given.elements.flatten(1)
    known = torch.cdist(given.matrices.flatten(1), flat).argmin(1).numpy()
    products = (element @ given.elements for element in given.elements)  # [g, d, d] each
    table = np.stack([torch.cdist(row.flatten(1), flat).argmin(1).numpy() for row in products])
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


def unanimous(keys: Ints, answers: Ints, n: int) -> Ints | None:
    """Return the answer of each key 0..n-1, IGNORE for one without; None if a key has two."""
    found = np.full(n, IGNORE, np.int64)
    found[keys] = answers
    return found if (found[keys] == answers).all() else None
