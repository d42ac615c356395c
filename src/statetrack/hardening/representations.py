"""Round orthogonal matrices to nearby ones that generate a finite group.

The matrices are multiplied with each other, with close results counted as one element, until no new
element is found. This gives the multiplication table of a finite group; the matrices are then moved
to the nearest ones that satisfy the table exactly.

If some matrices are far from any group, this fails. Then the group of a few random matrices is
computed, many times, and the group that most matrices are near to is taken: a vote. The other
matrices become the elements nearest to them.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from statetrack.hardening.groups import MAX_GROUP_SIZE, CannotRoundError

SAME_ELEMENT = (0.4, 1.0)  # tried: matrices with a smaller Frobenius distance are one element
MAX_ITERATIONS = 50  # of `Table.nearest`, which converges quadratically
MAX_VOTED_SIZE = 250  # elements of a group that is voted on
TRIALS = 60  # of the vote
TRIAL_SIZES = (2, 3, 4, 8)  # how many matrices generate the group of a trial, in turn
MIN_FITTING = 0.6  # the share of the matrices that must fit the group
ENOUGH_FITTING = 0.95  # the vote ends when so many do
MIN_AGREEING = 0.75  # share of these products that must give the same element, in `borrow`
EXACT = 1e-6  # distance below which exact matrices are equal

NO_GROUP = "its transitions are not close to a finite group"


def polar(matrices: Tensor) -> Tensor:
    """Return the orthogonal matrices nearest to these."""
    u, _, w = torch.linalg.svd(matrices)
    return u @ w


@dataclass(frozen=True)
class Table:
    """Products in a group of g elements; element 0 is the identity."""

    products: Tensor  # [n, g]: the number of generator times element
    parents: Tensor  # [g - 1, 2]: each later element is a generator times an earlier element

    def elements(self, generators: Tensor) -> Tensor:
        """Multiply out the elements [g, d, d]."""
        made = generators.new_zeros(self.products.shape[1], *generators.shape[1:])
        made[0] = torch.eye(generators.shape[-1])
        known = 1
        while known < len(made):  # all elements whose parent is known at once
            ready = known + int((self.parents[known - 1 :, 1] < known).cumprod(0).sum())
            which, earlier = self.parents[known - 1 : ready - 1].T
            made[known:ready] = generators[which] @ made[earlier]
            known = ready
        return made

    def nearest(self, generators: Tensor) -> Tensor:
        """Return matrices near `generators` [n, d, d] that satisfy the table."""
        made = generators
        for _ in range(MAX_ITERATIONS):
            elements = self.elements(made)
            # in an exact representation (s g) g^-1 is s for every g: take the mean over g, and then
            # the nearest orthogonal matrix
            mean = torch.einsum("sgij,gkj->sik", elements[self.products], elements)
            made, last = polar(mean), made
            if (made - last).abs().max() < 1e-14:
                break
        elements = self.elements(made)
        if (made[:, None] @ elements - elements[self.products]).abs().max() > 1e-10:
            raise CannotRoundError(NO_GROUP)
        return made


def close(generators: Tensor, same: float, limit: int = MAX_GROUP_SIZE) -> Table:
    """Compute the table of the group that matrices generate; close products are one element.

    An element is the mean of all products that were identified with it so far, which keeps errors
    from adding up.

    Args:
        generators: [n, d, d].
        same: products with a smaller Frobenius distance are one element.
        limit: the most elements.

    Raises:
        CannotRoundError: there are more elements, or the products are no group's.
    """
    eye = torch.eye(generators.shape[-1], dtype=generators.dtype)
    elements, sums = eye[None], eye[None]
    parents: list[tuple[int, int]] = []
    columns: list[Tensor] = []
    while len(columns) < len(elements):
        known, i = len(elements), len(columns)
        images = generators @ polar(sums[i])
        distances, column = torch.cdist(images.flatten(1), elements.flatten(1)).min(1)
        for g in torch.nonzero(distances > same).flatten().tolist():
            near = (elements[known:] - images[g]).flatten(1).norm(dim=1) <= same
            if near.any():
                column[g] = known + int(near.int().argmax())
                continue
            column[g] = len(elements)
            elements = torch.cat([elements, images[g, None]])
            parents.append((g, i))
        if len(elements) > limit:
            raise CannotRoundError(f"its products have more than {limit} elements")
        sums = torch.cat([sums, torch.zeros_like(elements[known:])])
        sums.index_add_(0, column, images)
        columns.append(column)
    products = torch.stack(columns, 1)
    if (products.sort(1).values != torch.arange(len(elements))).any():
        raise CannotRoundError(NO_GROUP)
    return Table(products, torch.tensor(parents, dtype=torch.int64).view(-1, 2))


@dataclass(frozen=True)
class Representation:
    """Exact matrices for n inputs, and all g elements of the group that they are taken from."""

    matrices: Tensor  # [n, d, d]
    elements: Tensor  # [g, d, d]
    fits: Tensor  # [n] bool: near to what was rounded

    @classmethod
    def of(cls, matrices: Tensor, elements: Tensor) -> Representation:
        """Take for each matrix the nearest element."""
        distances, nearest = torch.cdist(matrices.flatten(1), elements.flatten(1)).min(1)
        apart = torch.pdist(elements.flatten(1)).min() if len(elements) > 1 else math.inf
        return cls(elements[nearest], elements, distances < min(1.0, float(apart) / 2))

    @property
    def share(self) -> float:
        """The share of the matrices that fit."""
        return float(self.fits.double().mean())


def represent(matrices: Tensor, quality: Tensor) -> Representation:
    """Round orthogonal matrices to elements of a finite group.

    Args:
        matrices: [n, d, d].
        quality: [n]; the vote uses the generators with at least the median quality only.

    Raises:
        CannotRoundError: fewer than MIN_FITTING of the matrices are near to a finite group.
    """
    for same in SAME_ELEMENT:
        with suppress(CannotRoundError):
            table = close(matrices, same)
            made = Representation.of(matrices, table.elements(table.nearest(matrices)))
            if made.fits.all():
                return made
    best = _vote(matrices, quality)
    fits = best.fits  # the group is known: move it to where all that fit it are
    table = close(best.matrices[fits], EXACT)
    return Representation.of(matrices, table.elements(table.nearest(matrices[fits])))


def _vote(matrices: Tensor, quality: Tensor) -> Representation:
    """Return the group, generated by some of the matrices, that most matrices fit."""
    rng = torch.Generator().manual_seed(0)
    better = torch.nonzero(quality >= quality.median()).flatten()
    best, most = None, MIN_FITTING
    for trial in range(TRIALS):
        order = torch.randperm(len(better), generator=rng)
        some = matrices[better[order[: TRIAL_SIZES[trial % len(TRIAL_SIZES)]]]]
        with suppress(CannotRoundError):
            table = close(some, max(SAME_ELEMENT), MAX_VOTED_SIZE)
            made = Representation.of(matrices, table.elements(table.nearest(some)))
            if made.share >= most:
                best, most = made, made.share
            if most >= ENOUGH_FITTING:
                break
    if best is None:
        raise CannotRoundError(NO_GROUP)
    return best


def without_signs(given: Representation) -> Representation | None:
    """Return a representation without -I, in which as few matrices as possible change their sign.

    A head may represent its tokens up to signs only. The group then contains -I and has twice as
    many elements as the true one. A homomorphism g -> c(g) g with c(g) = +-1 that maps -I to I has
    half as many images.

    Args:
        given: a representation, with or without -I.

    Returns:
        The images; None if there is no such c.
    """
    flat = given.elements.flatten(1)

    def number(matrices: Tensor) -> Tensor:
        return torch.cdist(matrices.flatten(1), flat).argmin(1)

    minus = number(-given.elements[:1])
    if (given.elements[minus] + given.elements[:1]).abs().max() > EXACT:
        return None
    chosen = given.matrices[:0]  # few that generate the group
    table = close(chosen, EXACT)
    for matrix in given.matrices:
        if table.products.shape[1] == len(flat):
            break
        wider = close(torch.cat([chosen, matrix[None]]), EXACT)
        if wider.products.shape[1] > table.products.shape[1]:
            chosen, table = torch.cat([chosen, matrix[None]]), wider
    of_element = number(table.elements(chosen))
    best = None
    for signs in product((1.0, -1.0), repeat=len(chosen)):
        generators = torch.tensor(signs, dtype=flat.dtype)[:, None, None]
        c = table.elements(generators).flatten()  # [g]
        if not torch.equal(c[table.products], generators[:, 0] * c):
            continue
        c = torch.ones_like(c).index_copy(0, of_element, c)  # by number in `given`
        flips = int((c[number(given.matrices)] < 0).sum())
        if c[minus] < 0 and (best is None or flips < best[0]):
            best = flips, c
    if best is None:
        return None
    c = best[1][:, None, None]
    halves = given.elements[c.flatten() > 0]
    return replace(given, matrices=given.matrices * c[number(given.matrices)], elements=halves)


def borrow(given: Representation, others: list[Representation]) -> Representation:
    """Return `given` with matrices that do not fit inferred from products in other heads.

    If x = y z holds in another head in which x, y and z fit, and y and z fit here, x should be y z
    here, too. Most of these products must be the same element, which they are not if the group of
    the other head is smaller.
    """
    matrices, fits = given.matrices.clone(), given.fits.clone()
    for x in torch.nonzero(~given.fits).flatten().tolist():
        for other in others:
            both = given.fits & other.fits
            pairs = other.matrices[both][:, None] @ other.matrices[both]
            holds = (pairs - other.matrices[x]).flatten(2).norm(dim=2) < EXACT
            products = (given.matrices[both][:, None] @ given.matrices[both])[holds]
            if not other.fits[x] or not len(products):
                continue
            which = torch.cdist(products.flatten(1), given.elements.flatten(1)).argmin(1)
            votes = which.bincount()
            if votes.max() >= MIN_AGREEING * len(products):
                matrices[x], fits[x] = given.elements[votes.argmax()], True
                break
    return replace(given, matrices=matrices, fits=fits)
