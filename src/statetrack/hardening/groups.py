"""Round reflections, or products of them, to nearby ones that generate a finite group.

Single reflections I - 2 k k^T (`root_system`): they generate a finite group if the angles between
their unit vectors k are those of a root system, so the inner products of the k are rounded.

Products of reflections (`representation`): a product is an orthogonal matrix, but its factors are
not unique, as a rotation has infinitely many. So the matrices themselves are rounded. They are
multiplied with each other, with close results counted as one element, until no new element is
found. This gives the multiplication table of a finite group; the matrices are then moved to the
nearest ones that satisfy the table exactly.
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
SAME_ELEMENT = 0.4  # matrices with a smaller Frobenius distance are one element
MAX_ITERATIONS = 50  # of `representation`, which converges quadratically


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


def representation(matrices: Tensor) -> Tensor:
    """Return orthogonal matrices near `matrices` [n, d, d] that generate a finite group."""
    table, parents = _multiplication_table(matrices)
    made = matrices
    for _ in range(MAX_ITERATIONS):
        elements = _elements(made, parents)  # [g, d, d]
        # in an exact representation (s g) g^-1 is s for every g: take the mean over g, and then the
        # nearest orthogonal matrix
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
    """[elements, d, d]: the identity, then each a generator times an earlier element."""
    made = [torch.eye(matrices.shape[-1], dtype=matrices.dtype)]
    for generator, earlier in parents:
        made.append(matrices[generator] @ made[earlier])
    return torch.stack(made)


def _multiplication_table(matrices: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
    """Number the products of `matrices`, with close ones counted as one element.

    Returns:
        The table [n, elements] of generator times element, and for each element but the identity
        (generator, earlier element), as `_elements` takes them.
    """
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
    Any vector in the range of I - matrix can be the first one, so the one nearest to the first key
    is taken, and so on with what is left of the matrix.
    """
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
        raise CannotRoundError("a token needs more reflections than it has")
    return torch.stack(found) if found else keys[:0]
