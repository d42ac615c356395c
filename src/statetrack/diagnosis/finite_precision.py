"""Finite datatypes, and Lemma 1: what powers become when they are cast (Grazzi et al., 2025).

The theorems' model of finite precision: a state is a sum of products A(x_t) ... A(x_{s+1}) B(x_s).
Each product is computed exactly and cast to a finite set D of numbers; the sum is computed exactly
and cast again. The entries of such products over a repeated input are sums of c C(k, m) λ^(k-m).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from statetrack.config import unknown
from statetrack.errors import UserError, check_type

Floats = NDArray[np.float64]
Number = Fraction | int | float


@dataclass(frozen=True)
class Datatype:
    """A finite set of floats: 0 and ± n 2^(e - bits + 1), n < 2^bits, e from `low` to `high`.

    Without infinities: what exceeds `largest` is cast to it, its nearest element.
    """

    name: str
    bits: int  # of the significand, with the leading one
    low: int  # the exponent of the smallest normal number, and of the subnormal ones
    largest: Fraction

    @classmethod
    def ieee(cls, name: str, exponent_bits: int, mantissa_bits: int) -> Datatype:
        """The finite floats of an IEEE format: the greatest exponent is that of infinities."""
        bias = 2 ** (exponent_bits - 1) - 1
        largest = Fraction(2 ** (mantissa_bits + 1) - 1) * Fraction(2) ** (bias - mantissa_bits)
        return cls(name, mantissa_bits + 1, 1 - bias, largest)

    def elements(self) -> list[Fraction]:
        """Return all elements in ascending order."""
        found, exponent = {Fraction(0)}, self.low
        while max(found) < self.largest:
            unit = Fraction(2) ** (exponent - self.bits + 1)
            found.update(n * unit for n in range(2**self.bits))
            exponent += 1
        positive = [x for x in found if 0 < x <= self.largest]
        return sorted([*(-x for x in positive), Fraction(0), *positive])

    def cast(self, x: Number, *, from_above: bool = False) -> Fraction:
        """Return the smallest of the nearest elements, or the limit of casts of numbers above x."""
        x = Fraction(x)
        exponent = self.low
        if x:  # 2^exponent <= |x| < 2^(exponent + 1), if it is not subnormal
            exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
            exponent -= abs(x) < Fraction(2) ** exponent
            exponent = max(exponent, self.low)
        unit = Fraction(2) ** (exponent - self.bits + 1)
        half = Fraction(1, 2)
        n = math.floor(x / unit + half) if from_above else math.ceil(x / unit - half)
        return min(max(n * unit, -self.largest), self.largest)

    def cast_array(self, x: Floats) -> Floats:
        """Cast float64 numbers, which have more bits than any datatype here, exactly."""
        _, exponent = np.frexp(x)
        shift = np.maximum(exponent - 1, self.low) - self.bits + 1
        scaled = np.ldexp(x, -shift)
        tie = (np.rint(2 * scaled) == 2 * scaled) & (np.rint(scaled) != scaled)
        n = np.where(tie, np.floor(scaled), np.rint(scaled))
        return np.clip(np.ldexp(n, shift), -float(self.largest), float(self.largest))


DATATYPES = {
    d.name: d
    for d in (
        Datatype.ieee("fp32", 8, 23),
        Datatype.ieee("bf16", 8, 7),
        Datatype.ieee("fp16", 5, 10),
        Datatype("fp8_e4m3", 4, -6, Fraction(448)),  # no infinities, one NaN (OCP's E4M3)
        Datatype.ieee("fp8_e5m2", 5, 2),
    )
}


def find_datatype(name: str) -> Datatype:
    """Return a datatype by its name, or e3m2 and the like for an IEEE format of other sizes."""
    check_type("a precision", name, str, "a name such as 'bf16'")
    if name in DATATYPES:
        return DATATYPES[name]
    sizes = re.fullmatch(r"e([0-9]{1,2})m([0-9]{1,2})", name)
    if sizes is None:
        raise unknown("precision", name, [*DATATYPES, "e3m2 (for bits of exponent and mantissa)"])
    exponent, mantissa = int(sizes[1]), int(sizes[2])
    if not 2 <= exponent <= 8 or not 0 <= mantissa <= 23:
        raise UserError(f"precision {name}: 2 to 8 bits of exponent and 0 to 23 of mantissa")
    return Datatype.ieee(name, exponent, mantissa)


class Term(NamedTuple):
    """c C(k, m) λ^(k - m): an entry of the k-th power of a Jordan block."""

    c: Number
    eigenvalue: Number
    m: int = 0


class Settled(NamedTuple):
    """The casts of a_k are `even` for even k and `odd` for odd k, for all k >= start."""

    start: int
    even: Fraction
    odd: Fraction


def settle(terms: Sequence[Term], datatype: Datatype) -> Settled:
    """Lemma 1: find what the casts of a_k = Σ c C(k, m) λ^(k - m), λ real, become, and from where.

    If no eigenvalue is negative, then `even` = `odd`. All arithmetic is exact, so the result is a
    proof; `start` is the least possible. It takes time in proportion to `start`, which grows like
    1 / (1 - |λ|).

    Example:
        >>> settle([Term(1, -0.5)], DATATYPES["fp8_e4m3"])
        Settled(start=10, even=Fraction(0, 1), odd=Fraction(0, 1))
    """
    exact = [Term(Fraction(c), Fraction(λ), m) for c, λ, m in terms]
    ends = [_settle_parity(exact, parity, datatype) for parity in (0, 1)]
    (even_from, even), (odd_from, odd) = ends
    k = max(even_from, odd_from)
    while k > 0 and datatype.cast(power_sum(exact, k - 1)) == (odd if k % 2 == 0 else even):
        k -= 1
    return Settled(k, even, odd)


def power_sum(terms: Sequence[Term], k: int) -> Fraction:
    """Return a_k = Σ c C(k, m) λ^(k - m), exactly."""
    # where k < m, C(k, m) is 0
    values = (math.comb(k, m) * Fraction(c) * Fraction(λ) ** (k - m) for c, λ, m in terms if k >= m)
    return sum(values, Fraction(0))


def _settle_parity(terms: Sequence[Term], parity: int, datatype: Datatype) -> tuple[int, Fraction]:
    """A k from which on the casts of a_k, k even or odd, are constant, and their value.

    a_k is a limit plus terms b k^d μ^k, μ > 0. Let the lead be the greatest of these in the long
    run. Once the others sum to at most half of it, and do not grow in relation to it, the sign of
    what is added to the limit does not change any more.
    """
    monomials = _monomials(terms, parity)
    limit = monomials.pop((Fraction(1), 0), Fraction(0))
    least = 1 + max((t.m for t in terms), default=0)  # from there on, λ = 0 contributes nothing
    k = least + (least + parity) % 2
    if not monomials:
        return k, datatype.cast(limit)
    lead = max(monomials)
    while not _has_settled(monomials, lead, limit, k, datatype):
        k = 2 * k + parity  # of the same parity
    above = monomials[lead] > 0
    if lead[0] >= 1:
        return k, datatype.largest if above else -datatype.largest
    return k, datatype.cast(limit, from_above=above)


def _has_settled(
    monomials: dict[tuple[Fraction, int], Fraction],
    lead: tuple[Fraction, int],
    limit: Fraction,
    k: int,
    datatype: Datatype,
) -> bool:
    """Whether all casts from k on are the same, k going up in steps of 2."""
    μ, d = lead
    growth = Fraction(k + 2, k)
    size = {key: abs(b) * k ** key[1] * key[0] ** k for key, b in monomials.items()}
    others = [key for key in monomials if key != lead]
    if 2 * sum(size[key] for key in others) > size[lead]:
        return False
    if any((other / μ) ** 2 * growth ** (e - d) > 1 for other, e in others):
        return False
    if μ >= 1:  # grows without bound
        return size[lead] / 2 - abs(limit) >= datatype.largest
    if μ**2 * growth**d > 1:
        return False
    above = monomials[lead] > 0
    farthest = limit + 3 * size[lead] / 2 * (1 if above else -1)
    return datatype.cast(farthest) == datatype.cast(limit, from_above=above)


def _monomials(terms: Sequence[Term], parity: int) -> dict[tuple[Fraction, int], Fraction]:
    """The coefficients b of k^d μ^k, by (μ, d), for k of one parity; without those that are 0."""
    found: dict[tuple[Fraction, int], Any] = {}
    for c, λ, m in terms:
        if λ == 0:
            continue
        polynomial = [Fraction(1)]  # of C(k, m), by degree
        for i in range(m):  # times (k - i) / (i + 1)
            shifted = [Fraction(0), *polynomial]
            scaled = [*(i * b for b in polynomial), Fraction(0)]
            polynomial = [(a - b) / (i + 1) for a, b in zip(shifted, scaled, strict=True)]
        sign = -1 if λ < 0 and parity else 1
        for d, b in enumerate(polynomial):
            key = abs(Fraction(λ)), d
            found[key] = found.get(key, 0) + Fraction(c) * sign * b / Fraction(λ) ** m
    return {key: b for key, b in found.items() if b}
