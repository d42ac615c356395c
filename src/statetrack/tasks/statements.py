"""Random statements that fill rows of given sizes exactly, for `boxes` and `programs`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from statetrack.tasks.base import Ints


def fillable(sizes: Sequence[int], top: int) -> NDArray[np.bool_]:
    """Tell which totals 0..top are sums of the given sizes, each used any number of times."""
    reached = np.arange(top + 1) == 0
    for size in sizes:
        rows = -(-(top + 1) // size)
        table = np.zeros(rows * size, dtype=np.bool_)
        table[: top + 1] = reached
        reached = np.logical_or.accumulate(table.reshape(rows, size)).ravel()[: top + 1]
    return reached


def fill(rng: np.random.Generator, forms: Sequence[Sequence[int]], totals: Ints) -> Ints:
    """Fill each row with random statements of a given total size.

    Args:
        forms: The kinds of statements, each as the codes of its tokens.
        totals: [B], tokens of each row; every total must be a sum of sizes of forms.

    Returns:
        [B, max(totals)] codes, then 0. Each statement is uniform among the forms after which the
        rest of the row can still be filled.
    """
    lengths = [len(form) for form in forms]
    count, top = len(forms), int(totals.max())
    rest = fillable(lengths, top)
    fits = np.zeros((top + 1, count), dtype=np.bool_)
    for form, length in enumerate(lengths):
        fits[length:, form] = rest[: max(0, top + 1 - length)]
    fitting = np.argsort(~fits, axis=1, kind="stable")  # forms that fit come first
    choices = fits.sum(axis=1)
    fitting[0] = count  # the empty form, once a row is full

    sizes = np.array([*lengths, 0])
    left, drawn = totals.copy(), []
    while left.any():
        choice = (rng.random(len(left)) * choices.take(left)).astype(np.int64)
        drawn.append(fitting.ravel().take(left * count + choice))
        left = left - sizes.take(drawn[-1])

    order = np.array(drawn, dtype=np.int64).reshape(-1, len(totals)).T.ravel()
    taken = sizes[order]
    codes = np.concatenate([np.array(form) for form in forms])
    begins = np.cumsum([0, *lengths])  # position of each form in `codes`
    offsets = begins[order] - (np.cumsum(taken) - taken)
    out = np.zeros((len(totals), top), dtype=np.int64)
    out[np.arange(top) < totals[:, None]] = codes.take(
        np.arange(taken.sum()) + np.repeat(offsets, taken)
    )
    return out
