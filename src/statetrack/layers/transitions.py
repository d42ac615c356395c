"""The transition A(x_t) of a linear RNN in its structured form.

Each form has the dense matrices, the eigenvalues and what its parametrisation guarantees of them.
Diagnosis, plots and tests read layers through these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

import torch
from torch import Tensor


class Guarantee(StrEnum):
    """What holds for every eigenvalue, whatever the weights and inputs are."""

    NON_NEGATIVE = "non-negative"  # and real
    FADING = "fading"  # 1, or of modulus below 1
    REAL = "real"
    NONE = "none"


class Transition(ABC):
    """One matrix A(x_t) per batch, token and head (or channel group)."""

    bounds: tuple[float, float]
    """The interval that the parametrisation guarantees for the real part of every eigenvalue."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """[..., n]: the shape of a vector that A multiplies, for each batch, token and head."""

    @abstractmethod
    def dense(self) -> Tensor:
        """[..., n, n]."""

    def apply(self, x: Tensor) -> Tensor:
        """A x, for x [..., n, V]."""
        return self.dense() @ x

    def after(self, first: Transition) -> Transition:
        """The product A B of this A and B = `first`, which acts first."""
        return Dense(self.dense() @ first.dense())

    def product(self) -> Transition:
        """A(x_T) ... A(x_1) over the tokens, dimension 1."""
        P = self[:, 0].dense()
        for t in range(1, self.shape[1]):
            P = self[:, t].dense() @ P
        return Dense(P)

    @abstractmethod
    def eigvals(self) -> Tensor:
        """[..., n], complex."""

    @abstractmethod
    def guarantee(self, length: int = 1) -> Guarantee:
        """Return what holds for the eigenvalues of every product of `length` transitions."""

    @abstractmethod
    def __getitem__(self, index: Any) -> Self:
        """Select sequences and tokens."""


@dataclass(frozen=True)
class Diagonal(Transition):
    """A(x_t) = diag(values), values [B, T, ..., n]."""

    values: Tensor
    bounds: tuple[float, float]

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def dense(self) -> Tensor:
        return torch.diag_embed(self.values)

    def apply(self, x: Tensor) -> Tensor:
        return self.values[..., None] * x

    def after(self, first: Transition) -> Transition:
        if not isinstance(first, Diagonal):
            return super().after(first)
        return replace(self, values=self.values * first.values)

    def product(self) -> Transition:
        return replace(self, values=self.values.prod(1))

    def eigvals(self) -> Tensor:
        return _complex(self.values)

    def guarantee(self, length: int = 1) -> Guarantee:
        # products stay diagonal
        return Guarantee.NON_NEGATIVE if self.bounds[0] >= 0 else Guarantee.REAL

    def __getitem__(self, index: Any) -> Self:
        return replace(self, values=self.values[index])


@dataclass(frozen=True)
class HouseholderProduct(Transition):
    """A(x_t) = decay (I - beta_n k_n k_n^T) ... (I - beta_1 k_1 k_1^T), factor 1 applied first.

    decay: [B, T, H] or None for 1; k: [B, T, H, n, K]; beta: [B, T, H, n].
    """

    decay: Tensor | None
    k: Tensor
    beta: Tensor
    bounds: tuple[float, float]

    @property
    def shape(self) -> torch.Size:
        return self.k[..., 0, :].shape

    def dense(self) -> Tensor:
        size = self.k.shape[-1]
        A = torch.eye(size, dtype=self.k.dtype, device=self.k.device)
        for k, beta in zip(self.k.unbind(-2), self.beta.unbind(-1), strict=True):
            row = torch.einsum("...k,...kj->...j", k, A.expand(*k.shape, size))
            A = A - (beta[..., None] * k)[..., :, None] * row[..., None, :]
        return A if self.decay is None else self.decay[..., None, None] * A

    def apply(self, x: Tensor) -> Tensor:
        for k, beta in zip(self.k.unbind(-2), self.beta.unbind(-1), strict=True):
            x = x - (beta[..., None] * k)[..., :, None] * (k[..., None, :] @ x)
        return x if self.decay is None else self.decay[..., None, None] * x

    def eigvals(self) -> Tensor:
        factors, size = self.k.shape[-2:]
        if factors > size:
            return torch.linalg.eigvals(_wide(self.dense()))
        # A = I - K^T U with (I + diag(beta) L) U = diag(beta) K, L the strictly lower part of
        # K K^T: its eigenvalues are those of I - U K^T, which is small, and 1 for all the rest
        k, beta = _wide(self.k), _wide(self.beta)[..., None]
        gram, eye = k @ k.mT, torch.eye(factors, dtype=k.dtype, device=k.device)
        core = eye - torch.linalg.solve_triangular(
            eye + beta * gram.tril(-1), beta * gram, upper=False, unitriangular=True
        )
        values = _complex(torch.ones_like(k[..., 0, :]))
        values[..., :factors] = torch.linalg.eigvals(core)
        return values if self.decay is None else self.decay[..., None] * values

    def guarantee(self, length: int = 1) -> Guarantee:
        """Grazzi et al., Proposition 1.3; a bound above -1 says that no factor can be a reflection.

        Without reflections every eigenvalue of a product is 1 or of modulus below 1. The product
        of up to two factors with beta in [0, 1], positive semidefinite matrices, has real ones in
        [0, 1]; of three, they may be negative or complex. One factor is symmetric.
        """
        low, high = self.bounds
        factors = length * self.k.shape[-2]
        if low >= 0 and factors <= 2:
            return Guarantee.NON_NEGATIVE
        if low > -1 and high <= 1:
            return Guarantee.FADING
        return Guarantee.REAL if factors == 1 else Guarantee.NONE

    def __getitem__(self, index: Any) -> Self:
        decay = None if self.decay is None else self.decay[index]
        return replace(self, decay=decay, k=self.k[index], beta=self.beta[index])


class Dense(Transition):
    """A(x_t) itself.

    Args:
        matrices: [B, T, ..., n, n].
        bounds: the interval that holds the real part of every eigenvalue.
        guarantee: what the layer promises of the eigenvalues of every product of such matrices,
            whatever its weights and inputs are. It is taken on trust.
    """

    def __init__(
        self,
        matrices: Tensor,
        bounds: tuple[float, float] = (-float("inf"), float("inf")),
        guarantee: Guarantee = Guarantee.NONE,
    ) -> None:
        self.matrices = matrices
        self.bounds = bounds
        self._guarantee = Guarantee(guarantee)

    @property
    def shape(self) -> torch.Size:
        return self.matrices.shape[:-1]

    def dense(self) -> Tensor:
        return self.matrices

    def eigvals(self) -> Tensor:
        return torch.linalg.eigvals(_wide(self.matrices))

    def guarantee(self, length: int = 1) -> Guarantee:
        return self._guarantee

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.matrices[index], self.bounds, self._guarantee)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))  # no complex numbers below that


def _complex(values: Tensor) -> Tensor:
    values = _wide(values)
    return torch.complex(values, torch.zeros_like(values))
