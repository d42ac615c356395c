"""Matrices as products of generalised Householder matrices I - b v v^T (Proposition 1).

A product of such matrices with eigenvalues 1 - b |v|^2 in [-1, 1] has norm at most 1, and every
matrix of norm at most 1 is one: a permutation of n points with c cycles of n - c, an orthogonal
matrix of at most n, any other of at most 2 n. `product` multiplies factors as they are listed, so
the last one acts first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statetrack.config import one_of
from statetrack.errors import UserError

Matrix = NDArray[Any]  # integers where these are exact, else float64

FIXED = 1e-12  # a column this close to its unit vector needs no reflection
SLACK = 1e-9  # by which a norm may exceed 1


class Factor(NamedTuple):
    """I - b v v^T."""

    b: float
    v: Matrix  # [n]

    def dense(self) -> Matrix:
        """[n, n]."""
        return np.eye(len(self.v), dtype=self.v.dtype) - self.b * np.outer(self.v, self.v)


def product(factors: Sequence[Factor], size: int) -> Matrix:
    """[size, size]: the product of factors, the last one acting first."""
    result: Matrix = np.eye(size, dtype=np.int64)
    for factor in factors:
        result = result @ factor.dense()
    return result


def swaps(points: Sequence[int]) -> list[tuple[int, int]]:
    """The swaps that make up a permutation, given by the image of each point; the last acts first.

    A cycle of l points takes l - 1, and none can do with fewer.
    """
    pairs = []
    done = [False] * len(points)
    for first in range(len(points)):
        point = first
        while not done[point]:
            done[point] = True
            if points[point] != first:
                pairs.append((point, points[point]))
            point = points[point]
    return pairs


def permutation(points: Sequence[int]) -> list[Factor]:
    """The matrix that takes e_i to e_points[i], of swaps: v = e_i - e_j and b = 1, in integers."""
    points = [int(point) for point in points]
    if sorted(points) != list(range(len(points))):
        raise UserError(
            f"a permutation of {len(points)} points has each of 0 to {len(points) - 1} once; "
            f"got {points}"
        )
    unit = np.eye(len(points), dtype=np.int64)
    return [Factor(1, unit[i] - unit[j]) for i, j in swaps(points)]


def partial_injection(points: Sequence[int | None]) -> list[Factor]:
    """The matrix that takes e_i to e_points[i], or to 0 for None or -1; at most n factors.

    A chain of points that ends in nothing is closed to a cycle, and what would go around it is
    removed before: by a projector, b = 1 and v = e_i.
    """
    images = [-1 if point is None else int(point) for point in points]
    taken = [image for image in images if image >= 0]
    if len(set(taken)) < len(taken) or not all(-1 <= image < len(points) for image in images):
        raise UserError(
            f"a partial injection of {len(points)} points has each of 0 to {len(points) - 1} at "
            f"most once, and None or -1 for nothing; got {images}"
        )
    start = {image: point for point, image in enumerate(images) if image >= 0}
    closed, removed = list(images), []
    for end in range(len(points)):
        if images[end] < 0:
            point = end
            while point in start:
                point = start[point]
            closed[end] = point
            removed.append(end)
    unit = np.eye(len(points), dtype=np.int64)
    return permutation(closed) + [Factor(1, unit[i]) for i in removed]


def zero(size: int) -> list[Factor]:
    """The zero matrix: a projector along each axis."""
    return partial_injection([-1] * size)


def orthogonal(matrix: ArrayLike) -> list[Factor]:
    """An orthogonal matrix as at most n reflections, in float64.

    Column by column: a reflection takes what is left of the column to its unit vector. Single
    precision is not enough, for columns that are fixed already would be noise.
    """
    left = _square(matrix)
    size = len(left)
    if np.abs(left.T @ left - np.eye(size)).max() > SLACK:
        raise UserError("an orthogonal matrix is needed; the columns of this one are not")
    factors = []
    for i in range(size):
        difference = left[:, i] - np.eye(size)[i]
        length = np.linalg.norm(difference)
        if length > FIXED:
            v = difference / length
            left = left - 2 * np.outer(v, v @ left)
            factors.append(Factor(2, v))
    return factors


def contraction(matrix: ArrayLike, form: str = "polar") -> list[Factor]:
    """A matrix of norm at most 1, in float64.

    "polar" takes at most 2 n: with the singular values s and M = U S V^T, the orthogonal U V^T and
    then V S V^T, the product of the commuting I - (1 - s_i) v_i v_i^T. "paper" takes at most 3 n:
    U, S and V^T one after the other.
    """
    one_of("form", form, ("polar", "paper"))
    U, s, Vt = np.linalg.svd(_square(matrix))
    if s.max() > 1 + SLACK:
        raise UserError(f"a matrix of norm at most 1 is needed; this one has norm {s.max():.6g}")
    axes = Vt if form == "polar" else np.eye(len(s))
    shrinking = [Factor(1 - x, v) for x, v in zip(s, axes, strict=True) if x < 1 - FIXED]
    if form == "polar":
        return orthogonal(U @ Vt) + shrinking
    return orthogonal(U) + shrinking + orthogonal(Vt)


def _square(matrix: ArrayLike) -> Matrix:
    array = np.array(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not np.isfinite(array).all():
        raise UserError(f"a square matrix of finite numbers is needed; got shape {array.shape}")
    return array
