"""Random inputs: float64 with values that float32 can represent, so every dtype gets the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def draw(seed: int) -> Callable[..., Tensor]:
    """Return a function that draws normal tensors of a given shape."""
    generator = torch.Generator("cpu").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu").double()

    return normal


def spread(x: Tensor, low: float, high: float) -> Tensor:
    """Map normal numbers to uniform ones in [low, high]."""
    uniform = torch.special.ndtr(x)
    return (low + (high - low) * uniform).float().double()


def unit(x: Tensor) -> Tensor:
    """Normalise vectors to length 1, rounded to float32."""
    return (x / x.norm(dim=-1, keepdim=True)).float().double()


def with_exact(x: Tensor, *values: float) -> Tensor:
    """Copy x with every fifth entry replaced by one of `values`, in turn."""
    x = x.clone()
    places = x.view(-1)[::5]
    places.copy_(torch.tensor(values, dtype=x.dtype).repeat(len(places))[: len(places)])
    return x
