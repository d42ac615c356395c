"""Round heads with several Householder factors per input: the matrices of a finite group.

A head remembers in a subspace W of its key space: there the tokens' transitions are orthogonal, and
elsewhere the state decays. W is found from the covariance of the state that the first token writes,
after SPREADING_TOKENS random tokens: by then the state has decayed outside W and is spread evenly
within it (`memory_bases`).
The transitions within W are rounded to a finite group (`representations`) and factored into
reflections again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from statetrack.hardening.groups import CannotRoundError, into_reflections
from statetrack.hardening.heads import HeadInputs, OtherBetas, separate_others
from statetrack.hardening.inference import infer_ignored
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.representations import (
    Representation,
    borrow,
    polar,
    represent,
    without_signs,
)

SPREADING_TOKENS = 8  # after them the state is spread over W; more make it decay there, too
MIN_GAP = 2.0  # least ratio of the variance in a direction of W to that in any other direction
MIN_SHARE = 0.1  # of the largest variance, in a direction of W
MOSTLY_WITHIN = 0.7  # length of the projection to W of a key that acts on what is remembered
MIN_REMEMBERED = 0.8  # least singular value of a transition within W, for the median token

Writes = Literal["none", "center"]
WRITES: tuple[Writes, ...] = ("none", "center")  # tried


@dataclass(frozen=True)
class ProductRule:
    """Options for rounding heads with several Householder factors per token."""

    writes: Writes  # recurring tokens write nothing, or rotate the state about a common point
    signs: bool  # False: tokens may change their sign so that the group does not contain -I
    largest: bool  # only heads with the largest group are rounded; others may track signs only
    other_betas: OtherBetas
    infer: bool = False  # choose elements for tokens that a head ignores by the answers

    @classmethod
    def all(cls) -> Iterator[ProductRule]:
        """Yield every rule that is tried."""
        for largest, signs, writes in product((False, True), (True, False), WRITES):
            yield cls(writes, signs, largest, "all_zero")
        for signs, writes in product((True, False), WRITES):
            yield cls(writes, signs, False, "one")
        yield cls("none", True, False, "all_zero", infer=True)


@dataclass(frozen=True)
class Memory:
    """The transitions of a head's r recurring inputs, restricted to its memory subspace."""

    basis: Tensor  # [K, d]
    matrices: Tensor  # [r, d, d]: the transitions, the nearest orthogonal matrices
    center: Tensor  # [d, V]: the point about which they rotate, by least squares
    exact: Representation
    unsigned: Representation | None  # without -I, if that is possible

    @classmethod
    def of(cls, head: HeadInputs, recurring: Tensor, first: Tensor) -> Memory:
        """Find the memory subspace of a head, and the exact matrices within it.

        Args:
            head: of n inputs.
            recurring: [n] bool, the inputs that recur.
            first: the numbers of the inputs that occur at the first position.

        Raises:
            CannotRoundError: there is no such subspace, or no group is close to its matrices.
        """
        A, B = head.maps(len(recurring))
        likeliest = None  # the error there
        for basis in memory_bases(A[recurring], B[first]):
            try:
                return cls.within(basis, A[recurring], B[recurring])
            except CannotRoundError as error:
                likeliest = likeliest or error
        raise likeliest or CannotRoundError(
            "it has no memory subspace: no gap in the spectrum of its state's covariance"
        )

    @classmethod
    def within(cls, basis: Tensor, A: Tensor, B: Tensor) -> Memory:
        """Restrict the maps S -> A S + B of the recurring inputs to a subspace."""
        matrices = basis.T @ A @ basis
        smallest = torch.linalg.svdvals(matrices)[:, -1]
        if smallest.median() < MIN_REMEMBERED:
            raise CannotRoundError(
                "its state decays: half of the tokens have a singular value below "
                f"{MIN_REMEMBERED:g} in its memory subspace"
            )
        old = polar(matrices)
        exact = represent(old, smallest)
        if len(exact.elements) == 1:
            raise CannotRoundError("every token is rounded to the identity on its memory subspace")
        fixed = torch.eye(basis.shape[1], dtype=A.dtype) - old
        offsets = basis.T @ B
        center = torch.linalg.pinv(fixed.flatten(0, 1), rtol=1e-2) @ offsets.flatten(0, 1)
        return cls(basis, old, center, exact, without_signs(exact))

    def chosen(self, rule: ProductRule) -> Representation:
        """Return the exact matrices, with or without signs as the rule says."""
        return self.exact if rule.signs else self.unsigned or self.exact

    def moved_first(self, rule: ProductRule) -> Memory:
        """Return the memory with a rule's matrices, in a basis with the unmoved directions last."""
        exact = self.chosen(rule)
        eye = torch.eye(len(self.center), dtype=self.center.dtype)
        moves = torch.cat(list(eye - exact.matrices), 1)  # [d, r d]
        turn, _, _ = torch.linalg.svd(moves, full_matrices=False)

        def turned(matrices: Tensor) -> Tensor:
            return turn.T @ matrices @ turn

        made = replace(exact, matrices=turned(exact.matrices), elements=turned(exact.elements))
        return Memory(
            self.basis @ turn, turned(self.matrices), turn.T @ self.center, made, unsigned=None
        )

    def round(
        self, head: HeadInputs, recurring: Tensor, counts: Tensor, rule: ProductRule
    ) -> tuple[HeadInputs, float]:
        """Return the exact head, and the largest change of an entry of its matrices."""
        exact = self.chosen(rule)
        factors = len(head.beta) // len(recurring)
        center = self.center if rule.writes == "center" else torch.zeros_like(self.center)
        k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
        reflects = torch.zeros_like(beta, dtype=torch.bool)
        for i, matrix in zip(
            torch.nonzero(recurring).flatten().tolist(), exact.matrices, strict=True
        ):
            rows = torch.arange(i * factors, (i + 1) * factors)
            keys = k[rows] @ self.basis
            # those that act most on what is remembered, in their order
            rank = int(torch.linalg.matrix_rank(torch.eye(len(matrix)) - matrix, atol=1e-6))
            most = (beta[rows] * keys.norm(dim=1)).topk(min(rank, factors)).indices.sort().values
            roots = into_reflections(matrix, keys[most])
            beta[rows[keys.norm(dim=1) > MOSTLY_WITHIN]] = 0.0  # the spare ones cancelled
            chosen = rows[most]
            k[chosen], v[chosen], beta[chosen] = roots @ self.basis.T, roots @ center, 2.0
            reflects[chosen] = True
        made = HeadInputs(k, v, beta)
        written = self.basis.T @ head.maps(len(recurring))[1]  # [n, d, V]
        # if tokens do not write, the state rotates about 0: subtract the center from its start
        made = self._start_within(made, written + center - self.center, recurring, rule.infer)
        others = recurring.repeat_interleave(factors) & ~reflects
        made = separate_others(made, reflects, others, counts, rule.other_betas)
        error = (exact.matrices - self.matrices)[exact.fits].abs().max()
        return made, float(error)

    def _start_within(
        self, head: HeadInputs, written: Tensor, recurring: Tensor, evenly: bool
    ) -> HeadInputs:
        """Let inputs that occur at the first position only write within W alone.

        Args:
            head: the head, exact but for these inputs.
            written: [n, d, V] what each input writes within W.
            recurring: [n] bool.
            evenly: whether all singular values of a write become as large as the largest, so that
                different elements of the group lead to different states.
        """
        k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
        factors = len(beta) // len(recurring)
        for i in torch.nonzero(~recurring).flatten().tolist():
            rows = slice(i * factors, (i + 1) * factors)
            u, sizes, w = torch.linalg.svd(written[i], full_matrices=False)
            if evenly:
                sizes = sizes[0].expand_as(sizes)
            rank = min(factors, int((sizes > 1e-6 * sizes[0]).sum()))
            beta[rows] = 0.0
            rows = slice(i * factors, i * factors + rank)
            k[rows] = u[:, :rank].T @ self.basis.T
            v[rows] = sizes[:rank, None] * w[:rank]
            beta[rows] = 1.0
        return HeadInputs(k, v, beta)


def memory_bases(A: Tensor, starts: Tensor) -> Iterator[Tensor]:
    """Yield bases [K, d] of the subspaces in which a head may remember, the likeliest first.

    They are spanned by the eigenvectors of the largest eigenvalues of the covariance of the state
    after SPREADING_TOKENS random tokens, without their writes. By then components that decay have a
    small variance; components that no token moves belong to the mean, which is subtracted; and
    within an irreducible representation all eigenvalues are equal. So there is a large gap after
    the eigenvalues of W.

    Args:
        A: [r, K, K] transitions of the tokens.
        starts: [m, K, V] states to start from.
    """
    size = starts.norm().clamp(min=1e-12)
    square = torch.einsum("mkv,mlv->kl", starts, starts) / size**2
    mean = starts.sum(0) / (size * len(starts) ** 0.5)
    for _ in range(SPREADING_TOKENS):
        square = torch.einsum("rij,jk,rlk->il", A, square, A) / len(A)
        mean = A.mean(0) @ mean
    values, vectors = torch.linalg.eigh(square - mean @ mean.T)
    values, vectors = values.flip(0).clamp(min=1e-12), vectors.flip(1)
    # a head of size 1 has nothing to compare with
    gaps = values / torch.cat([values[1:], values.new_full((1,), 1e-12)])
    gaps = torch.where(values > MIN_SHARE * values[0], gaps, 0.0)
    for i in gaps.argsort(descending=True).tolist():
        if gaps[i] >= MIN_GAP:
            yield vectors[:, : i + 1]


def memories(heads: list[HeadInputs], inputs: LayerInputs) -> list[Memory | CannotRoundError]:
    """Return the memory of each head of a layer, or the error that says why it has none.

    The matrix of a token that fits no element in one head is inferred from other heads (`borrow`).
    """
    found: list[Memory | CannotRoundError] = []
    for head in heads:
        try:
            found.append(Memory.of(head, inputs.recurring, inputs.index[:, 0].unique()))
        except CannotRoundError as error:
            found.append(error)
    known = [m for m in found if isinstance(m, Memory)]

    def helped(memory: Memory) -> Memory:
        others = [m for m in known if m is not memory]
        exact = borrow(memory.exact, [m.exact for m in others])
        unsigned = memory.unsigned and borrow(
            memory.unsigned, [m.unsigned or m.exact for m in others]
        )
        return replace(memory, exact=exact, unsigned=unsigned)

    return [helped(m) if isinstance(m, Memory) else m for m in found]


def with_inferred(
    found: list[Memory | CannotRoundError], inputs: LayerInputs
) -> list[Memory | CannotRoundError]:
    """Return memories with elements also for the inputs that they ignore; see `inference`."""
    number = torch.where(inputs.recurring, inputs.recurring.cumsum(0) - 1, -1)
    index = torch.where(inputs.index >= 0, number[inputs.index], -1)  # among recurring inputs

    def inferred(memory: Memory) -> Memory | CannotRoundError:
        exact = infer_ignored(memory.exact, index, inputs.targets)
        if exact is None:
            return CannotRoundError("no elements were found for the tokens that it ignores")
        return replace(memory, exact=exact)

    return [inferred(m) if isinstance(m, Memory) else m for m in found]
