"""Round reflections to nearby ones that generate a finite group, and factor matrices into them.

Reflections I - 2 k k^T generate a finite group if the angles between their unit vectors k are those
of a root system, so the inner products of the k are rounded. Products of reflections are rounded as
matrices (`representations`), since their factors are not unique.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_COSINE_ERROR = 0.12  # the most by which an inner product is rounded
MAX_GROUP_SIZE = 1000  # roots of a root system (E8 has 240), or elements of a group
SAME_ROOT = 1 - 1e-6  # unit vectors with a larger inner product are one root


class CannotRoundError(Exception):
    """A head cannot be made exact; the message says why."""


def root_system(k: Tensor, orders: Sequence[int]) -> tuple[Tensor, float]:
    """Round unit vectors k [r, K] to a root system.

    Args:
        k: the vectors.
        orders: the m of the inner products cos(j pi / m) that are allowed.

    Returns:
        The new vectors, rotated to lie as near as possible to the old ones, and the largest change
        of an inner product.

    Raises:
        CannotRoundError: the vectors are too far from every root system.
    """
    gram = k @ k.T
    cosines = torch.tensor(
        sorted({round(math.cos(j * math.pi / m), 12) for m in orders for j in range(m + 1)})
    ).double()
    nearest = (gram[..., None] - cosines).abs().argmin(-1)
    exact = cosines[nearest].fill_diagonal_(1.0)
    error = float((gram - exact).abs().max())
    gap = float(cosines.diff().min()) if len(cosines) > 1 else 2.0
    if error > min(MAX_COSINE_ERROR, gap / 2.5):
        raise CannotRoundError(
            f"an inner product of its keys is {error:.2f} away from the nearest allowed one"
        )
    values, vectors = torch.linalg.eigh(exact)
    positive = values > 1e-9
    if values[0] < -1e-9 or int(positive.sum()) > k.shape[1]:
        raise CannotRoundError("no vectors have the rounded inner products")
    made = vectors[:, positive] * values[positive].sqrt()  # [r, rank]
    made = F.pad(made, (0, k.shape[1] - made.shape[1]))
    u, _, w = torch.linalg.svd(made.T @ k)  # Procrustes
    made = made @ (u @ w)
    made = made / made.norm(dim=-1, keepdim=True)
    _check_finite(made)
    return made, error


def _check_finite(roots: Tensor) -> None:
    """Raise unless the reflections generate a finite group.

    The roots are reflected in each other until there are no new ones: a finite group has finitely
    many.
    """
    found = roots[:0]
    todo = list(roots)
    for root in todo:  # grows while it is read
        if (found @ root > SAME_ROOT).any():
            continue
        found = torch.cat([found, root[None]])
        if len(found) > MAX_GROUP_SIZE:
            raise CannotRoundError(f"its reflections generate more than {MAX_GROUP_SIZE} roots")
        todo.extend(root - 2 * (roots @ root)[:, None] * roots)


def into_reflections(matrix: Tensor, keys: Tensor) -> Tensor:
    """Factor an orthogonal matrix into as few reflections as possible, near the given keys.

    Any vector in the range of I - matrix can be the first one, so the one nearest to the first key
    is taken, and so on with what is left of the matrix. For rotations in the plane of the first two
    axes the keys are ignored: one vector is along the first axis, and the other at most a quarter
    of a turn from it, so one quadrant holds those of all tokens (`layers.inverse.into_quadrant`).

    Args:
        matrix: [d, d].
        keys: [f, d], at most one for each reflection.

    Returns:
        Unit vectors [r, d], where r is the rank of I - matrix; the first reflection acts first.

    Raises:
        CannotRoundError: there are fewer keys than reflections.
    """
    if len(keys) > 1 and _rotates_first_plane(matrix):
        half = torch.atan2(matrix[1, 0], matrix[0, 0]) / 2
        pair = torch.zeros(2, len(matrix)).double()
        pair[0, 0], pair[1, 0], pair[1, 1] = 1.0, half.cos(), half.sin().abs()
        return pair if half > 0 else pair.flip(0)
    found = []
    eye = torch.eye(len(matrix)).double()
    for key in keys:
        basis, sizes, _ = torch.linalg.svd(eye - matrix)
        rank = int((sizes > 1e-6).sum())
        if not rank:
            break
        basis = basis[:, :rank]  # of the range of I - matrix
        coordinates = basis.T @ key
        if coordinates.norm() < 0.1:  # the key is nearly orthogonal to the range: take any vector
            coordinates = eye[0, :rank]
        root = basis @ (coordinates / coordinates.norm())
        found.append(root)
        matrix = matrix - 2 * torch.outer(matrix @ root, root)
    if (matrix - eye).abs().max() > 1e-6:
        raise CannotRoundError("a token needs more Householder factors than it has")
    return torch.stack(found) if found else keys[:0]


def _rotates_first_plane(matrix: Tensor) -> bool:
    """Whether a matrix is a rotation, other than I, in the plane of the first two axes."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    left = matrix.clone()
    left[:2, :2] = eye[:2, :2]
    fixed = (left - eye).abs().max() < 1e-6
    return bool(fixed and torch.linalg.det(matrix) > 0 and matrix[:2, :2].trace() < 2 - 1e-6)
