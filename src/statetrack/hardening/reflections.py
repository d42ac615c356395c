"""Reflections that almost generate a finite group, moved until they do.

A head of DeltaNet has for each token the affine map S -> S - beta k (k^T S - v^T). With beta = 2
it is the reflection in the hyperplane k^T S = v^T. Such reflections generate a finite group if the
angles between their keys are those of a root system (inner products cos(j pi / m)) and if the
hyperplanes have a point in common; otherwise their products turn by odd angles or wander off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

FARTHEST = 0.12  # from an angle's cosine, beyond which a head is not moved
SLOW = 0.9  # an eigenvalue of greater modulus, and below 1: training hardly shows it fade
MAX_ROOTS = 1000  # E8, the largest root system without a family, has 240


Rest = Literal["zero", "fill", "keep", "drop"]
RESTS: tuple[Rest, ...] = ("zero", "fill", "keep", "drop")


@dataclass(frozen=True)
class Head:
    """One head's constants in float64, by token; by token and factor if a token has several."""

    k: Tensor  # [n, K]
    v: Tensor  # [n, V]
    beta: Tensor  # [n]
    gate: Tensor | None = None  # [n], by token alone, if the layer has one
    says: Tensor | None = None  # [n, V], of a head without memory: what comes out of its norm


@dataclass(frozen=True)
class Rule:
    """What is rounded, and how far."""

    tau: float  # a token whose beta is so close to 2 reflects
    rest: Rest  # the betas of the others: small ones to 0, to 1, or left; or all to 0
    orders: Sequence[int] = (1, 2, 3)  # the m in cos(j pi / m)


class CannotHardenError(Exception):
    """Why a head stays as it is."""


def snap(head: Head, recurring: Tensor, counts: Tensor, rule: Rule) -> tuple[Head, float]:
    """The exact head, and how far its Gram matrix was from that of the root system.

    A token that does not reflect must leave alone what reflections act on: its key is made
    orthogonal to theirs. Along such a key the state tends to the token's value, in the course of
    1 / beta tokens. If that is longer than what was trained on, the state goes where it never was;
    so a small beta becomes 0, and the state stays at 0 there, or 1, and it is at once where it is
    in training, after the token has been read `counts` times.
    """
    reflects = recurring & (head.beta > 2 - rule.tau)
    if not reflects.any():
        raise CannotHardenError("no token reflects")
    k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
    k[reflects], error = root_system(head.k[reflects], rule.orders)
    beta[reflects] = 2.0
    roots = k[reflects]  # [r, K]
    v[reflects] = roots @ (torch.linalg.pinv(roots, rtol=1e-6) @ v[reflects])  # meet in one point
    return leave_alone(Head(k, v, beta), reflects, recurring & ~reflects, counts, rule), error


def leave_alone(head: Head, reflects: Tensor, others: Tensor, counts: Tensor, rule: Rule) -> Head:
    """The head whose other tokens do nothing to what those that reflect act on: see `snap`."""
    k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
    roots = k[reflects]
    span = torch.linalg.pinv(roots, rtol=1e-6)  # [K, r]
    for i in torch.nonzero(others).flatten().tolist():
        rest = k[i] - span @ (roots @ k[i])
        small = beta[i] < 0.5 and (rule.rest == "zero" or rest.norm() < 0.1)
        if small or rule.rest == "drop":
            beta[i] = 0.0
        elif rest.norm() >= 0.1:
            k[i] = rest / rest.norm()
            if beta[i] < 1.5 and rule.rest == "fill":
                v[i] *= 1 - (1 - beta[i]).abs() ** counts[i]
                beta[i] = 1.0
    return Head(k, v, beta)


def inexact(head: Head, recurring: Tensor) -> tuple[int, int]:
    """How many tokens disturb the state for longer than training shows, and how many at all.

    A token disturbs it if its beta is neither 0, 1 nor 2, or if it also acts on what reflections
    act on; two with beta 1 do, at all, if they overwrite a part of what the other one wrote.
    """
    if head.says is not None:
        return 0, 0
    reflects = recurring & (head.beta == 2)
    modulus = (1 - head.beta).abs()
    span = torch.linalg.pinv(head.k[reflects], rtol=1e-6)
    shared = ((head.k @ span).norm(dim=1) > 1e-6) & (head.beta > 0)
    others, fades = recurring & ~reflects, (modulus > 0) & (modulus < 1)
    slow = others & (shared | (fades & (modulus > SLOW)))
    writes = others & (head.beta == 1)
    cosines = (head.k @ head.k.T).abs()
    mixed = (cosines > 1e-6) & (cosines < 1 - 1e-6) & writes & writes[:, None]
    every = others & (shared | fades | mixed.any(1))
    if head.gate is not None:  # that of a head that is left as it was
        gate = head.gate.repeat_interleave(len(recurring) // len(head.gate))
        slow, every = slow | (recurring & (gate > SLOW)), recurring
    return int(slow.sum()), int(every.sum())


def root_system(k: Tensor, orders: Sequence[int]) -> tuple[Tensor, float]:
    """Unit vectors near k [r, K] with inner products cos(j pi / m), and the greatest change."""
    gram = k @ k.T
    cosines = torch.tensor(
        sorted({round(math.cos(j * math.pi / m), 12) for m in orders for j in range(m + 1)})
    ).double()
    nearest = (gram[..., None] - cosines).abs().argmin(-1)
    exact = cosines[nearest].fill_diagonal_(1.0)
    error = float((gram - exact).abs().max())
    gap = float(cosines.diff().min()) if len(cosines) > 1 else 2.0
    if error > min(FARTHEST, gap / 2.5):
        raise CannotHardenError(f"an inner product of keys is {error:.2f} off")
    values, vectors = torch.linalg.eigh(exact)
    lasting = values > 1e-9
    if values[0] < -1e-9 or int(lasting.sum()) > k.shape[1]:
        raise CannotHardenError("no vectors have the rounded inner products")
    made = vectors[:, lasting] * values[lasting].sqrt()  # [r, rank]
    made = F.pad(made, (0, k.shape[1] - made.shape[1]))
    u, _, w = torch.linalg.svd(made.T @ k)  # Procrustes: turned onto the old keys
    turned = made @ (u @ w)
    turned = turned / turned.norm(dim=-1, keepdim=True)
    _check_finite(turned)
    return turned, error


def _check_finite(roots: Tensor) -> None:
    """Reflect roots in roots until there are no new ones: a finite group has finitely many."""
    found = torch.empty(0, roots.shape[1], dtype=roots.dtype)
    new = roots
    while len(new):
        found = torch.cat([found, new])
        if len(found) > MAX_ROOTS:
            raise CannotHardenError(f"its reflections generate more than {MAX_ROOTS} roots")
        images = (new[:, None] - 2 * (new @ roots.T)[..., None] * roots).flatten(0, 1)
        new = _distinct(images)
        new = new[((new @ found.T) < 1 - 1e-6).all(1)]


def _distinct(vectors: Tensor) -> Tensor:
    _, index = torch.unique((vectors * 1e5).round(), dim=0, return_inverse=True)
    first = torch.full((int(index.max()) + 1,), len(vectors))
    first.scatter_reduce_(0, index, torch.arange(len(vectors)), "amin")
    kept = vectors[first]
    # rounding may have split one vector into two neighbours: keep the first of each
    same = (kept @ kept.T) > 1 - 1e-6
    return kept[~same.tril(-1).any(1)]
