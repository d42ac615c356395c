"""The period into which each layer settles when a word is read again and again.

Reading w w w ..., the first layer sees an input of period |w|. Over one period P its state goes
through an affine map whose linear part is the monodromy M = A(x_P) ... A(x_1). Eigenvalues of M
that are real and not negative, or of modulus below 1, settle; what keeps turning is the rest, and
if those are roots of unity of orders with least common multiple q, the next layer sees an input of
period q P. So the output has a period that divides |w| q_1 q_2 ... in the end.

It must be the eigenvalues of M, not those of single transitions: two reflections, each with the
eigenvalues 1 and -1, make a rotation by any angle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from statetrack.diagnosis.spectrum import turning
from statetrack.layers import Transition

MAX_ORDER = 64  # of roots of unity that are told from other angles
FIRST = 256  # tokens that are read before it is asked whether the layers have settled
ILL_CONDITIONED = 1e6


class Recurrence(Protocol):
    """What a model must be able to tell, as SequenceModel does."""

    def transitions(self, tokens: Tensor) -> list[Transition | None]:
        """A(x_t) of every layer for tokens [B, T]; None for a layer that is no linear RNN."""


@dataclass(frozen=True)
class LayerPeriod:
    """What one layer does to the period of its input."""

    period: int  # of its input, in tokens
    factor: int | None  # by which it may multiply it; None if that cannot be told
    why: str = ""  # it cannot
    waits: bool = False  # more tokens may tell
    fading: float | None = None  # the greatest modulus, per token, of what turns but dies out
    ill_conditioned: bool = False  # eigenvalues that last are uncertain


def find_periods(
    model: Recurrence, word: list[int], *, tolerance: float, max_tokens: int
) -> list[LayerPeriod]:
    """Layer by layer, up to the first one of which it cannot be told."""
    length = min(max_tokens, max(FIRST, 8 * len(word)))
    while True:
        found = _walk(model, word, length, tolerance)
        if not found[-1].waits or length == max_tokens:
            return found
        length = min(2 * length, max_tokens)


def _walk(model: Recurrence, word: list[int], length: int, tolerance: float) -> list[LayerPeriod]:
    tokens = torch.tensor(word).repeat(-(-length // len(word)))[None, :length]
    period, found = len(word), []
    for transition in model.transitions(tokens):
        this = _layer(transition, period, length, tolerance)
        found.append(this)
        if this.factor is None:
            break
        period *= this.factor
    return found


def _layer(
    transition: Transition | None, period: int, length: int, tolerance: float
) -> LayerPeriod:
    if transition is None:
        return LayerPeriod(period, None, "it is no linear RNN")
    if 4 * period > length:
        why = f"its input has a period of {period} tokens, and only {length} were read"
        return LayerPeriod(period, None, why, waits=True)
    M = _monodromy(transition, length, period)
    # the period before shows what is not periodic, the one at half the time what still drifts
    earlier = (length - period, length - period * (length // (2 * period)))
    change = max(float((M - _monodromy(transition, end, period)).abs().max()) for end in earlier)
    if not change <= tolerance:  # not a number, if the model has overflowed
        why = f"after {length} tokens its transitions still change by {change:.2g}"
        return LayerPeriod(period, None, why, waits=True)
    eigenvalues, vectors = torch.linalg.eig(M.double())
    values = eigenvalues.flatten().numpy()
    lasting = np.abs(values) >= 1 - tolerance
    turns = turning(values, tolerance)
    orders = {order(v, tolerance) for v in values[lasting & turns]}
    fading = np.abs(values[turns & ~lasting])
    # the norm of a left eigenvector beside a right one of length 1 is the condition of its value
    left, failed = torch.linalg.inv_ex(vectors)
    conditions = left.norm(dim=-1).flatten().numpy()[np.abs(values) > 0.5]
    whole = {q for q in orders if q is not None}
    quasi = f"an eigenvalue of modulus 1 is no root of unity up to order {MAX_ORDER}: counts drift"
    return LayerPeriod(
        period,
        None if None in orders else math.lcm(*whole),
        quasi if None in orders else "",
        fading=float(fading.max()) ** (1 / period) if fading.size else None,
        ill_conditioned=bool(failed.any() or (conditions > ILL_CONDITIONED).any()),
    )


def _monodromy(transition: Transition, end: int, period: int) -> Tensor:
    """A(x_end) ... A(x_{end - period + 1}), tokens counted from 1; [..., n, n]."""
    M = transition[0, end - period].dense()
    for t in range(end - period + 1, end):
        M = transition[0, t].dense() @ M
    return M


def order(value: complex, tolerance: float) -> int | None:
    """The least n <= MAX_ORDER for which the direction of `value` is an n-th root of unity."""
    angle = math.atan2(value.imag, value.real) / (2 * math.pi)
    for n in range(1, MAX_ORDER + 1):
        if 2 * math.pi * abs(angle - round(n * angle) / n) <= tolerance:
            return n
    return None
