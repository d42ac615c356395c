"""The eigenvalues of one layer's transitions at probed tokens, and how long they last."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.layers import Transition

Complexes = NDArray[np.complex128]
Floats = NDArray[np.float64]

PRECISIONS = {"bf16": 2.0**-9, "fp32": 2.0**-24}  # half a unit in the last place of 1
LARGEST = float(torch.finfo(torch.bfloat16).max)  # that of float32 is as good as the same
NOISE = 1e-11  # of a modulus: the epsilon of a key's norm, say, in float64
GRID = 100  # cells of a figure per unit length
MAX_PAIRS = 100_000  # of a token and a head in a table


def turning(values: Complexes, tolerance: float) -> NDArray[np.bool_]:
    """Which eigenvalues are negative or not real: those that can change a state for ever."""
    return (np.abs(values.imag) > tolerance) | (values.real < -tolerance)


def horizon(modulus: float, precision: str) -> float:
    """How many tokens pass until modulus^T is below what the precision resolves beside 1."""
    if modulus >= 1 - NOISE:
        return math.inf
    return math.log(PRECISIONS[precision]) / math.log(modulus) if modulus > 0 else 0.0


def overflow(modulus: float) -> float:
    """How many tokens pass until modulus^T exceeds the greatest number of bf16 and fp32."""
    return math.log(LARGEST) / math.log(modulus) if modulus > 1 else math.inf


@dataclass(frozen=True)
class Extremes:
    """The ends of a set of eigenvalues."""

    min_real: float
    max_imag: float  # the greatest |Im|
    max_modulus: float
    turning_modulus: float | None  # the greatest of those that are negative or not real, if any

    @classmethod
    def of(cls, values: Complexes, tolerance: float) -> Extremes:
        """Of any non-empty array."""
        modulus = np.abs(values)
        lasting = modulus[turning(values, tolerance)]
        return cls(
            min_real=float(values.real.min()),
            max_imag=float(np.abs(values.imag).max()),
            max_modulus=float(modulus.max()),
            turning_modulus=float(lasting.max()) if lasting.size else None,
        )

    def horizon(self, precision: str) -> float | None:
        """How long a negative or complex eigenvalue keeps its sign, in tokens; None without one."""
        if self.turning_modulus is None:
            return None
        return horizon(self.turning_modulus, precision)


@dataclass(frozen=True)
class Joint:
    """The ends of the eigenvalues of each token and head, [tokens, heads] each."""

    tokens: list[int]
    min_real: Floats
    max_imag: Floats
    max_modulus: Floats
    turning_modulus: Floats  # NaN where none is negative or not real

    @classmethod
    def of(cls, values: Complexes, ids: NDArray[np.int64], tolerance: float) -> Joint:
        """values [N, heads, n] at the tokens ids [N]."""
        tokens = np.unique(ids)
        parts = [values[ids == token] for token in tokens]

        def ends(function: Callable[[Complexes], Floats]) -> Floats:
            return np.stack([function(part).max(axis=(0, 2)) for part in parts])

        def lasting(part: Complexes) -> Floats:
            return np.where(turning(part, tolerance), np.abs(part), -1.0)

        last = ends(lasting)
        return cls(
            tokens=tokens.tolist(),
            min_real=-ends(lambda part: -part.real),
            max_imag=ends(lambda part: np.abs(part.imag)),
            max_modulus=ends(np.abs),
            turning_modulus=np.where(last < 0, np.nan, last),
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

    heads: int
    size: int  # eigenvalues per head
    total: Extremes
    by_token: dict[int, Extremes]
    by_head: tuple[Extremes, ...]
    joint: Joint | None  # by token and head; None if these make more than MAX_PAIRS
    points: Points

    @classmethod
    def of(cls, transition: Transition, tokens: Tensor, seen: Tensor, tolerance: float) -> Spectrum:
        """Of the transitions at tokens [B, T], where `seen` [B, T]."""
        found = transition.eigvals()  # [B, T, ..., n]
        size = found.shape[-1]
        values = found[seen].reshape(int(seen.sum()), -1, size).numpy()  # [N, H, n]
        ids = tokens[seen].numpy()  # [N]
        pairs = len(np.unique(ids)) * values.shape[1]
        return cls(
            heads=values.shape[1],
            size=size,
            total=Extremes.of(values, tolerance),
            by_token={int(t): Extremes.of(values[ids == t], tolerance) for t in np.unique(ids)},
            by_head=tuple(Extremes.of(v, tolerance) for v in values.swapaxes(0, 1)),
            joint=Joint.of(values, ids, tolerance) if pairs <= MAX_PAIRS else None,
            points=_points(ids, values),
        )


def _points(ids: NDArray[np.int64], values: Complexes) -> Points:
    token = np.repeat(ids, values[0].size)
    half = 1 << 20  # cells to each side of 0; what lies further out is drawn at the edge
    flat = values.ravel()
    real, imag = (
        np.clip(np.rint(GRID * part), 1 - half, half - 1).astype(np.int64) + half
        for part in (flat.real, flat.imag)
    )
    cells, count = np.unique((token * 2 * half + real) * 2 * half + imag, return_counts=True)
    rest, imag = np.divmod(cells, 2 * half)
    token, real = np.divmod(rest, 2 * half)
    return Points(token, (real - half + 1j * (imag - half)) / GRID, count)
