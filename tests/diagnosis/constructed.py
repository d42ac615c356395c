"""Linear RNNs given by their transitions: what they can do is known by construction."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from statetrack.layers import Diagonal, HouseholderProduct, Transition

Rule = Callable[[Tensor], Transition | None]  # tokens [B, T] -> one layer's transitions


class Constructed(nn.Module):
    """Layers as functions of the tokens alone, since here deeper layers only need positions."""

    def __init__(self, *rules: Rule) -> None:
        super().__init__()
        self.rules = rules

    def transitions(self, tokens: Tensor) -> list[Transition | None]:
        return [rule(tokens) for rule in self.rules]


def scalar(value: float, bounds: tuple[float, float] = (-1.0, 1.0)) -> Rule:
    """A(x) = value for every token."""
    return lambda tokens: Diagonal(torch.full((*tokens.shape, 1, 1), value).double(), bounds)


def sign(tokens: Tensor) -> Tensor:
    """(-1)^t, t = 1, 2, ...: what a layer with A = -1 tells the next one."""
    return (1 - 2 * (torch.arange(1, tokens.shape[1] + 1) % 2)).double().expand(tokens.shape)


def reflection(angle: Tensor) -> Tensor:
    """The key [..., 2] for which I - 2 k k^T = [[cos, sin], [sin, -cos]]."""
    return torch.stack([torch.sin(angle / 2), -torch.cos(angle / 2)], -1)


def rotation(turn: float) -> Rule:
    """Two reflections that turn the plane by `turn` on every token."""

    def rule(tokens: Tensor) -> Transition:
        angles = torch.tensor([0.0, turn]).double().expand(*tokens.shape, 1, 2)
        beta = torch.full_like(angles, 2.0)
        return HouseholderProduct(None, reflection(angles), beta, (-1.0, 1.0))

    return rule
