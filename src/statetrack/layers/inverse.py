"""Weights from what they should give: refits of projections and inverses of activations.

A layer that can be hardened (see `Mixer.hardening_obstacle`) sets its weights with these.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.ops.l2_norm import l2_normalize

RANK_TOLERANCE = 1e-4  # relative; float32 has no room for smaller singular values
REFIT_TOLERANCE = 1e-9  # of the refit, relative to the largest output
SMALLEST_OUTPUT = 1e-6  # outputs below it count as this large in the tolerance of the refit
MIN_SILU = -0.25  # least value asked of SiLU, whose minimum is -0.278
KEY_LENGTH = 1e4  # of keys before they are normalised: the norm's epsilon is lost beside it
MAX_SILU_LENGTH = 30.0  # of keys after SiLU: beside long ones float32 has few digits for short ones
NO_STEP = -60.0  # softplus of it is a step size that keeps everything and writes nothing
SATURATED = 100.0  # exp(-SATURATED) is lost beside 1, in float64 as well

NO_NEGATIVE = "its eigenvalues lie in [0, 1], so no input can flip or reflect its state"


class DependentError(Exception):
    """No weights give each input what it should have: the inputs are linearly dependent."""


class HeadTargets(NamedTuple):
    """What a layer on the delta rule should feed its op for n inputs; f factors, H heads."""

    k: Tensor  # [n f, H, K], of length 1
    v: Tensor  # [n f, H, V]
    beta: Tensor  # [n f, H]
    outputs: Tensor  # [n, H, V]: the normalised output of a head without memory; NaN: has memory
    open_gates: Tensor  # [H] bool: the head's gate becomes 1


def independent(x: Tensor) -> bool:
    """Whether a linear map can send inputs x [n, D] to any outputs, with room for float32."""
    return int(torch.linalg.matrix_rank(x, rtol=RANK_TOLERANCE)) == len(x)


def refit(weight: Tensor, x: Tensor, outputs: Tensor, exact: bool = True) -> Tensor:
    """Return the matrix [m, D] nearest to `weight` that maps inputs x [n, D] to outputs [n, m].

    Raises:
        DependentError: there is none. With `exact` False, the least-squares one is returned.
    """
    missing = outputs - x @ weight.T
    made = weight + (torch.linalg.pinv(x, rtol=RANK_TOLERANCE) @ missing).T
    if exact and len(x):
        error = (x @ made.T - outputs).abs().max()
        if error > REFIT_TOLERANCE * outputs.abs().max().clamp(min=SMALLEST_OUTPUT):
            raise DependentError
    return made


@torch.no_grad()
def pad_weights(made: nn.Module, old: nn.Module) -> None:
    """Set the weights of `made` to those of a smaller module, and to 0 beyond them."""
    made.to(next(old.parameters()))
    for name, weight in made.named_parameters():
        given = old.get_parameter(name)
        weight.zero_()
        weight[tuple(slice(size) for size in given.shape)] = given


def inverse_silu(y: Tensor) -> Tensor:
    """Return x with SiLU(x) = y on its increasing branch, by bisection; y >= MIN_SILU."""
    low, high = torch.full_like(y, -1.278), y.clamp(min=0) + 2.0
    for _ in range(100):
        middle = (low + high) / 2
        below = F.silu(middle) < y
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.where(y == 0, 0.0, (low + high) / 2)


def inverse_stretched_sigmoid(share: Tensor, stretch: float) -> Tensor:
    """Return the logits of BetaGate's shares in [0, 1]; 0 and 1 are half the stretch beyond."""
    inside = share.clone()
    inside[share == 0] = -stretch / 2
    inside[share == 1] = 1 + stretch / 2
    s = (inside + stretch) / (1 + 2 * stretch)
    return torch.log(s) - torch.log1p(-s)


def before_normalisation(k: Tensor, silu: bool) -> tuple[Tensor, Tensor]:
    """Return what gives unit vectors k [..., K] after (SiLU and) normalisation, and their length.

    After SiLU no entry is below -0.278, so vectors with negative entries stay short beside the
    epsilon of the normalisation and end a little below length 1: a reflection then has an
    eigenvalue of about -1 + 1e-6.
    """
    if not silu:
        return KEY_LENGTH * k, torch.ones_like(k[..., :1])
    lowest = k.amin(-1, keepdim=True).clamp(max=MIN_SILU / MAX_SILU_LENGTH)
    scaled = k * (MIN_SILU / lowest)
    return inverse_silu(scaled), l2_normalize(scaled).norm(dim=-1, keepdim=True)


def saturate(logits: Tensor, gates: Tensor, end: float, zero: float) -> Tensor:
    """Return `logits` with `end`, -`end` and `zero` where the gate should be 1, -1 and 0."""
    for value, logit in ((1.0, end), (-1.0, -end), (0.0, zero)):
        logits = logits.masked_fill(gates == value, logit)
    return logits


def half_space(x: Tensor) -> Tensor:
    """Return a unit vector [D] with positive products with inputs x [n, D], if there is one."""
    units = F.normalize(x, dim=1)
    w = units.mean(0) + SMALLEST_OUTPUT * units[0]  # the mean may be 0
    for _ in range(1000):  # a perceptron
        wrong = units @ w <= 1e-3 * w.norm()
        if not wrong.any():
            break
        w = w + units[wrong].mean(0)
    return w / w.norm()


def along_axes(roots: Tensor) -> Tensor:
    """Return a rotation [K, K] after which (`roots @ rotation`) the first root is along an axis.

    The second one lies in the plane of the first two axes, and so on. Along an axis a reflection
    has no rounding errors: a head that flips between two states does so for ever in float32.
    """
    rotation, _ = torch.linalg.qr(roots.T, mode="complete")
    return rotation


def into_quadrant(roots: Tensor) -> Tensor:
    """Return a rotation [K, K] after which (`roots @ rotation`) all roots lie in one quadrant.

    Up to their signs the roots [r, K] then are in the first quadrant of the plane of the first two
    axes, one along an axis. Rounding errors do not lead out of this plane. A root without negative
    entries can be long after SiLU, so that the epsilon of its normalisation is lost beside it. If
    the roots span more than a plane, or no quadrant holds them, the rotation is I.
    """
    eye = torch.eye(roots.shape[1], dtype=roots.dtype)
    if not len(roots) or len(eye) == 1:
        return eye
    _, sizes, axes = torch.linalg.svd(roots)
    plane = roots @ axes[:2].T
    angles = torch.atan2(plane[:, 1], plane[:, 0]).remainder(math.pi)  # of lines
    angles = torch.where(angles > math.pi - 1e-6, 0.0, angles).sort().values
    gaps = angles.roll(-1) - angles  # from each line to the next
    gaps[-1] += math.pi
    if (sizes[2:] > 1e-6).any() or gaps.max() < math.pi / 2 - 1e-6:
        return eye
    first = angles.roll(-1)[gaps.argmax()]
    c, s = first.cos(), first.sin()
    eye[:2, :2] = torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
    return axes.T @ eye
