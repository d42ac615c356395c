"""The period into which each layer settles when a word is read again and again.

Reading w w w ..., the first layer has an input of period P = |w|. Over one period its state goes
through an affine map whose linear part is the monodromy M = A(x_P) ... A(x_1). Components for
eigenvalues of M that are real and not negative, or of modulus below 1, converge. The others
oscillate; if their eigenvalues are roots of unity of orders with least common multiple q, the next
layer has an input of period q P. So the period of the output divides |w| q_1 q_2 ... in the end.

The eigenvalues of M count, not those of single transitions: two reflections, each with the
eigenvalues 1 and -1, make a rotation by any angle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from statetrack.diagnosis.spectrum import oscillating
from statetrack.layers import Transition

MAX_ROOT_ORDER = 64  # of roots of unity that are distinguished from other angles
MIN_TOKENS = 256  # that are read before the layers are tested for having settled
ILL_CONDITIONED = 1e6


class Recurrence(Protocol):
    """A model with transitions, such as SequenceModel."""

    def transitions(self, tokens: Tensor) -> list[Transition | None]:
        """A(x_t) of every layer for tokens [B, T]; None for a layer that is no linear RNN."""


@dataclass(frozen=True)
class LayerPeriod:
    """What one layer does to the period of its input."""

    period: int  # of its input, in tokens
    factor: int | None  # by which it may multiply that period; None: unknown
    why: str = ""  # the factor is unknown
    unsettled: bool = False  # more tokens may determine the factor
    fading: float | None = None  # the largest modulus, per token, of what oscillates and fades
    ill_conditioned: bool = False  # the eigenvalues are uncertain


def find_periods(
    model: Recurrence, word: list[int], *, tolerance: float, max_tokens: int
) -> list[LayerPeriod]:
    """Find the factor of each layer, up to the first layer whose factor is unknown."""
    length = min(max_tokens, max(MIN_TOKENS, 8 * len(word)))
    while True:
        found = _walk(model, word, length, tolerance)
        if not found[-1].unsettled or length == max_tokens:
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
        return LayerPeriod(period, None, why, unsettled=True)
    M = _monodromy(transition, length, period)
    # compared with one period earlier (is it periodic?) and at half the time (does it drift?)
    earlier = (length - period, length - period * (length // (2 * period)))
    change = max(float((M - _monodromy(transition, end, period)).abs().max()) for end in earlier)
    if not change <= tolerance:  # NaN if the model has overflowed
        why = f"after {length} tokens its transitions still change by {change:.2g}"
        return LayerPeriod(period, None, why, unsettled=True)
    eigenvalues, vectors = torch.linalg.eig(M.double())
    values = eigenvalues.flatten().numpy()
    lasting = np.abs(values) >= 1 - tolerance
    oscillates = oscillating(values, tolerance)
    orders = {order(v, tolerance) for v in values[lasting & oscillates]}
    fading = np.abs(values[oscillates & ~lasting])
    # beside a right eigenvector of length 1, the left one's norm is the eigenvalue's condition
    left, failed = torch.linalg.inv_ex(vectors)
    conditions = left.norm(dim=-1).flatten().numpy()[np.abs(values) > 0.5]
    whole = {q for q in orders if q is not None}
    drift = (
        f"an eigenvalue of modulus 1 is no root of unity up to order {MAX_ROOT_ORDER}: counts drift"
    )
    return LayerPeriod(
        period,
        None if None in orders else math.lcm(*whole),
        drift if None in orders else "",
        fading=float(fading.max()) ** (1 / period) if fading.size else None,
        ill_conditioned=bool(failed.any() or (conditions > ILL_CONDITIONED).any()),
    )


def _monodromy(transition: Transition, end: int, period: int) -> Tensor:
    """A(x_end) ... A(x_{end - period + 1}) [..., n, n], tokens counted from 1."""
    M = transition[0, end - period].dense()
    for t in range(end - period + 1, end):
        M = transition[0, t].dense() @ M
    return M


def order(value: complex, tolerance: float) -> int | None:
    """The least n <= MAX_ROOT_ORDER for which the direction of `value` is an n-th root of unity."""
    angle = math.atan2(value.imag, value.real) / (2 * math.pi)
    for n in range(1, MAX_ROOT_ORDER + 1):
        if 2 * math.pi * abs(angle - round(n * angle) / n) <= tolerance:
            return n
    return None
