"""Products of reflections that almost generate a finite group, moved until they do.

A token with several reflections is an orthogonal matrix. Its factors are not its own: two
reflections make the same rotation wherever in its plane they stand, so that the angles between the
keys of different tokens say nothing. The matrices do. Multiplied with each other, those that are
close taken for one, they give the table of a finite group, and the matrices nearest to them that
multiply by this table are its representation: a mean over the group, repeated, finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statetrack.hardening.reflections import CannotHardenError, Head, Rule, leave_alone

FLAT = 0.25  # of the greatest singular value of the keys that reflect: less is noise
CLOSE = 0.4  # the Frobenius norm of a difference below which two matrices are one element
MAX_ELEMENTS = 1000
ROUNDS = 50  # far more than it takes: the error is squared every time


def snap_products(
    head: Head, factors: int, recurring: Tensor, counts: Tensor, rule: Rule
) -> tuple[Head, float]:
    """The exact head, as `snap` makes it, and how far the tokens' matrices were from its own.

    The head's constants, `recurring` and `counts` are by token and factor, the first applied first.
    """
    reflects = recurring & (head.beta > 2 - rule.tau)
    if not reflects.any():
        raise CannotHardenError("no token reflects")
    _, sizes, w = torch.linalg.svd(head.k[reflects], full_matrices=False)
    basis = w[sizes > FLAT * sizes[0]]  # [d, K]
    keys = head.k @ basis.T  # [n factors, d]
    keys = keys / keys.norm(dim=1, keepdim=True).clamp(min=1e-6)
    tokens = [
        [i for i in range(start, start + factors) if reflects[i]]
        for start in range(0, len(reflects), factors)
        if recurring[start]
    ]
    eye = torch.eye(len(basis)).double()
    matrices, offsets = [], []
    for units in tokens:
        A, b = eye, torch.zeros(len(basis), head.v.shape[1]).double()
        for i in units:  # S -> S - 2 k (k^T S - v^T)
            A = A - 2 * torch.outer(keys[i], keys[i] @ A)
            b = b - 2 * torch.outer(keys[i], keys[i] @ b - head.v[i])
        matrices.append(A)
        offsets.append(b)
    old = torch.stack(matrices)
    exact = representation(old)
    # the point that all of them leave alone, as nearly as there is one
    center = torch.linalg.pinv(torch.cat(list(eye - old)), rtol=1e-2) @ torch.cat(offsets)
    k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
    for units, matrix in zip(tokens, exact, strict=True):
        roots = into_reflections(matrix, keys[units])
        beta[units] = 0.0
        for i, root in zip(units, roots, strict=False):  # what is left over cancelled out
            k[i], v[i], beta[i] = root @ basis, root @ center, 2.0
    acts = beta == 2
    others = recurring & ~reflects
    made = leave_alone(Head(k, v, beta), acts, others, counts, rule)
    return made, float((exact - old).abs().max())


@dataclass(frozen=True)
class Table:
    """A group as the tokens generate it: element 0 is the identity."""

    next: Tensor  # [tokens, elements]: the token's matrix times the element
    parents: list[tuple[int, int]]  # by element, without the first: a token, and an element before

    def elements(self, matrices: Tensor) -> Tensor:
        """[elements, d, d], as products of the tokens' matrices."""
        made = [torch.eye(matrices.shape[-1], dtype=matrices.dtype)]
        for token, before in self.parents:
            made.append(matrices[token] @ made[before])
        return torch.stack(made)


def representation(matrices: Tensor) -> Tensor:
    """Orthogonal matrices near `matrices` [n, d, d] that generate a finite group."""
    table = _multiply_out(matrices)
    made = matrices
    for _ in range(ROUNDS):
        elements = table.elements(made)  # [g, d, d]
        # if s g were the product exactly, (s g) g^-1 would be s for every g
        mean = torch.einsum("sgij,gkj->sik", elements[table.next], elements)
        u, _, w = torch.linalg.svd(mean)
        made, last = u @ w, made
        if (made - last).abs().max() < 1e-15:
            break
    elements = table.elements(made)
    off = made[:, None] @ elements - elements[table.next]
    if off.abs().max() > 1e-10:
        raise CannotHardenError("its products are near to no finite group")
    return made


def _multiply_out(matrices: Tensor) -> Table:
    elements = torch.eye(matrices.shape[-1], dtype=matrices.dtype)[None]
    parents: list[tuple[int, int]] = []
    columns: list[list[int]] = []
    while len(columns) < len(elements):
        column = []
        for token, image in enumerate(matrices @ elements[len(columns)]):
            distance, place = (elements - image).flatten(1).norm(dim=1).min(0)
            if distance > CLOSE:
                place = torch.tensor(len(elements))
                elements = torch.cat([elements, image[None]])
                parents.append((token, len(columns)))
            column.append(int(place))
        columns.append(column)
        if len(elements) > MAX_ELEMENTS:
            raise CannotHardenError(f"its products have more than {MAX_ELEMENTS} elements")
    table = torch.tensor(columns).T  # [tokens, elements]
    if any(len(row.unique()) < len(row) for row in table):
        raise CannotHardenError("its products are near to no finite group")
    return Table(table, parents)


def into_reflections(matrix: Tensor, keys: Tensor) -> Tensor:
    """Unit vectors [r, d] near `keys` whose reflections, the first applied first, give `matrix`.

    r is the least number that does: the rank of I - matrix. Any vector of its range can be the
    first one.
    """
    found = []
    for key in keys:
        moved, sizes, _ = torch.linalg.svd(torch.eye(len(matrix)).double() - matrix)
        rank = int((sizes > 1e-6).sum())
        if not rank:
            break
        moved = moved[:, :rank]
        shares = moved.T @ key
        if shares.norm() < 0.1:
            shares = torch.eye(rank).double()[0]
        root = moved @ (shares / shares.norm())
        found.append(root)
        matrix = matrix - 2 * torch.outer(matrix @ root, root)
    if (matrix - torch.eye(len(matrix)).double()).abs().max() > 1e-6:
        raise CannotHardenError("a token needs more reflections than it has")
    return torch.stack(found) if found else keys[:0]
