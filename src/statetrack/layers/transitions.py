"""The transition A(x_t) of a linear RNN in its structured form.

Diagnostics, plots and tests read only this: each form gives the dense matrices, the eigenvalues
and the range in which its parametrisation keeps them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Transition(ABC):
    """One matrix A(x_t) per batch, token and head (or channel group)."""

    bounds: tuple[float, float]
    """The interval that the parametrisation guarantees for the real part of every eigenvalue."""

    @abstractmethod
    def dense(self) -> Tensor:
        """[..., n, n]."""

    @abstractmethod
    def eigvals(self) -> Tensor:
        """[..., n], complex."""


@dataclass(frozen=True)
class Diagonal(Transition):
    """A(x_t) = diag(values), values [B, T, ..., n]."""

    values: Tensor
    bounds: tuple[float, float]

    def dense(self) -> Tensor:
        return torch.diag_embed(self.values)

    def eigvals(self) -> Tensor:
        return _complex(self.values)


@dataclass(frozen=True)
class HouseholderProduct(Transition):
    """A(x_t) = decay (I - beta_n k_n k_n^T) ... (I - beta_1 k_1 k_1^T), factor 1 applied first.

    decay: [B, T, H] or None for 1; k: [B, T, H, n, K]; beta: [B, T, H, n].
    """

    decay: Tensor | None
    k: Tensor
    beta: Tensor
    bounds: tuple[float, float]

    def dense(self) -> Tensor:
        size = self.k.shape[-1]
        A = torch.eye(size, dtype=self.k.dtype, device=self.k.device)
        for k, beta in zip(self.k.unbind(-2), self.beta.unbind(-1), strict=True):
            row = torch.einsum("...k,...kj->...j", k, A.expand(*k.shape, size))
            A = A - (beta[..., None] * k)[..., :, None] * row[..., None, :]
        return A if self.decay is None else self.decay[..., None, None] * A

    def eigvals(self) -> Tensor:
        if self.k.shape[-2] != 1:
            return torch.linalg.eigvals(_wide(self.dense()))
        k, beta = self.k[..., 0, :], self.beta[..., 0]
        values = torch.ones_like(k)
        values[..., 0] = 1 - beta * (k * k).sum(-1)  # along k; 1 on everything orthogonal to it
        if self.decay is not None:
            values = self.decay[..., None] * values
        return _complex(values)


@dataclass(frozen=True)
class Dense(Transition):
    """A(x_t) itself, matrices [B, T, ..., n, n]."""

    matrices: Tensor
    bounds: tuple[float, float] = (-float("inf"), float("inf"))

    def dense(self) -> Tensor:
        return self.matrices

    def eigvals(self) -> Tensor:
        return torch.linalg.eigvals(_wide(self.matrices))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))  # no complex numbers below that


def _complex(values: Tensor) -> Tensor:
    values = _wide(values)
    return torch.complex(values, torch.zeros_like(values))
