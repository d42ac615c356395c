"""Linear RNNs given by their transitions: what they can do is known by construction."""

from __future__ import annotations

import math
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


class ReflectionAdder(Constructed):
    """Addition modulo m with one reflection per token: Theorem 6 of Grazzi et al.

    Layer 0 has A = -1 and tells p_t = (-1)^t. Layer 1 reflects at the angle p_t x_t 2 pi / m, so
    that the angle of its state is p_t (x_1 + ... + x_t) 2 pi / m.
    """

    def __init__(self, m: int) -> None:
        super().__init__(scalar(-1.0), self.reflect)
        self.m = m

    def reflect(self, tokens: Tensor) -> Transition:
        angle = sign(tokens) * tokens * 2 * math.pi / self.m
        k = reflection(angle)[..., None, None, :]  # [B, T, 1, 1, 2]
        return HouseholderProduct(None, k, torch.full(k.shape[:-1], 2.0).double(), (-1.0, 1.0))

    def forward(self, tokens: Tensor) -> Tensor:
        """The sums modulo m of all prefixes, [B, T], by running the recurrences."""
        flip, turn = (t.dense() for t in self.transitions(tokens) if t is not None)
        p = torch.ones(len(tokens), 1, 1, 1).double()
        h = torch.tensor([[1.0], [0.0]]).double().expand(len(tokens), 1, 2, 1)
        out = []
        for t in range(tokens.shape[1]):
            p, h = flip[:, t] @ p, turn[:, t] @ h
            angle = torch.atan2(p[:, 0, 0, 0] * h[:, 0, 1, 0], h[:, 0, 0, 0])
            out.append((angle * self.m / (2 * math.pi)).round().long() % self.m)
        return torch.stack(out, 1)
