"""Move matrices that almost generate a finite group until they do.

A set of reflections I - 2 k k^T generates a finite group if the angles between their unit vectors k
are those of a root system. A product of reflections is an orthogonal matrix, and its factors are
not unique: the same rotation has infinitely many. So products are compared as matrices. Multiplied
with each other, close ones counted as one, they give the multiplication table of a finite group;
the matrices nearest to them that follow this table are a representation of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_COSINE_ERROR = 0.12  # of an inner product that is rounded
MAX_GROUP_SIZE = 1000  # roots of a root system (E8 has 240), or elements of a group
SAME_ROOT = 1 - 1e-6  # unit vectors with a larger inner product are one root
SAME_ELEMENT = 0.4  # matrices with a smaller Frobenius distance are one element
MAX_ITERATIONS = 50  # of the mean over a group, whose error is squared each time


class CannotRoundError(Exception):
    """Why a head is left as it is."""


def root_system(k: Tensor, orders: Sequence[int]) -> tuple[Tensor, float]:
    """Round unit vectors k [r, K] to a root system.

    Args:
        k: the vectors.
        orders: the m of the inner products cos(j pi / m) that are allowed.

    Returns:
        The new vectors, rotated onto the old ones, and the largest change of an inner product.
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
        raise CannotRoundError(f"an inner product of keys is {error:.2f} off")
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
    """Reflect roots in roots until there are no new ones: a finite group has finitely many."""
    found = roots[:0]
    todo = list(roots)
    for root in todo:  # grows while it is read
        if (found @ root > SAME_ROOT).any():
            continue
        found = torch.cat([found, root[None]])
        if len(found) > MAX_GROUP_SIZE:
            raise CannotRoundError(f"its reflections generate more than {MAX_GROUP_SIZE} roots")
        todo.extend(root - 2 * (roots @ root)[:, None] * roots)


def representation(matrices: Tensor) -> Tensor:
    """Return orthogonal matrices near `matrices` [n, d, d] that generate a finite group."""
    table, parents = _multiplication_table(matrices)
    made = matrices
    for _ in range(MAX_ITERATIONS):
        elements = _elements(made, parents)  # [g, d, d]
        # if s g were the product exactly, (s g) g^-1 would be s for every g
        mean = torch.einsum("sgij,gkj->sik", elements[table], elements)
        u, _, w = torch.linalg.svd(mean)
        made, last = u @ w, made
        if (made - last).abs().max() < 1e-15:
            break
    elements = _elements(made, parents)
    if (made[:, None] @ elements - elements[table]).abs().max() > 1e-10:
        raise CannotRoundError("its products are near to no finite group")
    return made


def _elements(matrices: Tensor, parents: list[tuple[int, int]]) -> Tensor:
    """[elements, d, d], from the identity on: each a generator times an earlier element."""
    made = [torch.eye(matrices.shape[-1], dtype=matrices.dtype)]
    for generator, earlier in parents:
        made.append(matrices[generator] @ made[earlier])
    return torch.stack(made)


def _multiplication_table(matrices: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
    """[n, elements]: the number of generator times element; and the parents of `_elements`."""
    elements = torch.eye(matrices.shape[-1], dtype=matrices.dtype)[None]
    parents: list[tuple[int, int]] = []
    columns: list[list[int]] = []
    while len(columns) < len(elements):
        column = []
        for generator, image in enumerate(matrices @ elements[len(columns)]):
            distance, nearest = (elements - image).flatten(1).norm(dim=1).min(0)
            if distance > SAME_ELEMENT:
                nearest = torch.tensor(len(elements))
                elements = torch.cat([elements, image[None]])
                parents.append((generator, len(columns)))
            column.append(int(nearest))
        columns.append(column)
        if len(elements) > MAX_GROUP_SIZE:
            raise CannotRoundError(f"its products have more than {MAX_GROUP_SIZE} elements")
    table = torch.tensor(columns).T
    if any(len(row.unique()) < len(row) for row in table):
        raise CannotRoundError("its products are near to no finite group")
    return table, parents


def into_reflections(matrix: Tensor, keys: Tensor) -> Tensor:
    """Factor an orthogonal matrix into reflections, the first applied first.

    Returns unit vectors [r, d] near `keys`; r is the rank of I - matrix, the least number possible.
    Any vector of the range of I - matrix can be the first one.
    """
    found = []
    eye = torch.eye(len(matrix)).double()
    for key in keys:
        moved, sizes, _ = torch.linalg.svd(eye - matrix)
        rank = int((sizes > 1e-6).sum())
        if not rank:
            break
        moved = moved[:, :rank]
        shares = moved.T @ key
        if shares.norm() < 0.1:
            shares = eye[0, :rank]
        root = moved @ (shares / shares.norm())
        found.append(root)
        matrix = matrix - 2 * torch.outer(matrix @ root, root)
    if (matrix - eye).abs().max() > 1e-6:
        raise CannotRoundError("a token needs more reflections than it has")
    return torch.stack(found) if found else keys[:0]
