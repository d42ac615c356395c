"""The eigenvalues of one layer's transitions at the probed tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.layers import Transition

Complexes = NDArray[np.complex128]
Floats = NDArray[np.float64]

PRECISIONS = {"bf16": 2.0**-9, "fp32": 2.0**-24}  # half a unit in the last place of 1
LARGEST = float(torch.finfo(torch.bfloat16).max)  # nearly that of float32
ROUNDING = 1e-11  # of a modulus in float64, for example by the epsilon of a key's norm
CELLS_PER_UNIT = 100  # cells of a figure per unit length
MAX_PAIRS = 100_000  # of a token and a head in the JSON output


def oscillating(values: Complexes, tolerance: float) -> NDArray[np.bool_]:
    """Which eigenvalues are negative or not real: only their powers change sign or direction."""
    return (np.abs(values.imag) > tolerance) | (values.real < -tolerance)


def decay_length(modulus: float, precision: str) -> float:
    """The number of tokens T at which modulus^T reaches what the precision resolves beside 1."""
    if modulus >= 1 - ROUNDING:
        return math.inf
    return math.log(PRECISIONS[precision]) / math.log(modulus) if modulus > 0 else 0.0


def overflow_length(modulus: float) -> float:
    """The number of tokens T after which modulus^T exceeds the largest number of bf16 and fp32."""
    return math.log(LARGEST) / math.log(modulus) if modulus > 1 else math.inf


@dataclass(frozen=True)
class Extremes:
    """The extremes of a set of eigenvalues."""

    min_real: float
    max_imag: float  # the largest |Im|
    max_modulus: float
    oscillating_modulus: float | None  # the largest of those that are negative or not real

    @classmethod
    def of(cls, values: Complexes, tolerance: float) -> Extremes:
        """Find the extremes of a non-empty array."""
        return cls.from_maxima(_maxima(values, tolerance, None))

    @classmethod
    def from_maxima(cls, maxima: Floats) -> Extremes:
        """Name the numbers of `_maxima`."""
        negated, imag, modulus, oscillates = maxima.tolist()
        return cls(-negated, imag, modulus, oscillates if oscillates >= 0 else None)

    def decay_length(self, precision: str) -> float | None:
        """Tokens for which a negative or complex eigenvalue keeps its sign; None without one."""
        modulus = self.oscillating_modulus
        return None if modulus is None else decay_length(modulus, precision)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; an unlimited length is null."""
        lengths = {precision: self.decay_length(precision) for precision in PRECISIONS}
        decay_lengths = {p: None if n is None or math.isinf(n) else n for p, n in lengths.items()}
        return {**asdict(self), "decay_length": decay_lengths}


def _maxima(values: Complexes, tolerance: float, axis: tuple[int, ...] | None) -> Floats:
    """[4, ...]: max of -Re, |Im|, the modulus, and the modulus where oscillating (-1: nowhere)."""
    modulus = np.abs(values)
    return np.stack(
        [
            -values.real.min(axis),
            np.abs(values.imag).max(axis),
            modulus.max(axis),
            np.where(oscillating(values, tolerance), modulus, -1.0).max(axis),
        ]
    )


@dataclass(frozen=True)
class Points:
    """Eigenvalues on a grid, with how often they occur, for figures."""

    token: NDArray[np.int64]
    value: Complexes
    count: NDArray[np.int64]


@dataclass(frozen=True)
class Spectrum:
    """A layer's eigenvalues over all probed tokens."""

    size: int  # eigenvalues per head
    tokens: list[int]
    maxima: Floats  # [4, tokens, heads]
    points: Points

    @classmethod
    def of(
        cls, transition: Transition, tokens: Tensor, exists: Tensor, tolerance: float
    ) -> Spectrum:
        """Compute the eigenvalues at tokens [B, T], where `exists` [B, T]."""
        found = transition.eigvals()  # [B, T, ..., n]
        size = found.shape[-1]
        values = found[exists].reshape(int(exists.sum()), -1, size).numpy()  # [N, heads, n]
        ids = tokens[exists].numpy()  # [N]
        present = np.unique(ids)
        maxima = [_maxima(values[ids == token], tolerance, (0, 2)) for token in present]
        return cls(size, present.tolist(), np.stack(maxima, 1), _points(ids, values))

    @property
    def heads(self) -> int:
        """The number of heads or channels."""
        return self.maxima.shape[2]

    @property
    def total(self) -> Extremes:
        """The extremes over all tokens and heads."""
        return Extremes.from_maxima(self.maxima.max((1, 2)))

    @property
    def by_token(self) -> dict[int, Extremes]:
        """The extremes over all heads, by token."""
        rows = self.maxima.max(2).T
        return {t: Extremes.from_maxima(row) for t, row in zip(self.tokens, rows, strict=True)}

    def to_dict(self, vocab: Sequence[str]) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "heads": self.heads,
            "size": self.size,
            **self.total.to_dict(),
            "by_token": {vocab[token]: e.to_dict() for token, e in self.by_token.items()},
            "by_head": [Extremes.from_maxima(m).to_dict() for m in self.maxima.max(1).T],
            "by_token_and_head": self._pairs(vocab),
        }

    def _pairs(self, vocab: Sequence[str]) -> dict[str, Any]:
        """Return tables [tokens][heads] of the extremes, unless these are too large."""
        tokens, heads = len(self.tokens), self.heads
        if tokens * heads > MAX_PAIRS:
            return {
                "left_out": f"{tokens:,} tokens and {heads:,} heads make {tokens * heads:,} pairs; "
                f"at most {MAX_PAIRS:,} are listed: see by_token and by_head"
            }
        negated, imag, modulus, oscillates = self.maxima.tolist()
        return {
            "tokens": [vocab[token] for token in self.tokens],
            "min_real": [[-value for value in row] for row in negated],
            "max_imag": imag,
            "max_modulus": modulus,
            "oscillating_modulus": [[m if m >= 0 else None for m in row] for row in oscillates],
        }


def _points(ids: NDArray[np.int64], values: Complexes) -> Points:
    token = np.repeat(ids, values[0].size)
    half = 1 << 20  # cells on each side of 0; values beyond are drawn at the edge
    flat = values.ravel()
    real, imag = (
        np.clip(np.rint(CELLS_PER_UNIT * part), 1 - half, half - 1).astype(np.int64) + half
        for part in (flat.real, flat.imag)
    )
    cells, count = np.unique((token * 2 * half + real) * 2 * half + imag, return_counts=True)
    rest, imag = np.divmod(cells, 2 * half)
    token, real = np.divmod(rest, 2 * half)
    return Points(token, (real - half + 1j * (imag - half)) / CELLS_PER_UNIT, count)
