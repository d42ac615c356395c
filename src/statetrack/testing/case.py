"""The layer under test: built anew for every check, with inputs, states and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from statetrack.testing.inputs import draw

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Relative errors that pass, by the number type of the calculation."""


class Case:
    """Builds the layer under test, its inputs and its states.

    Args:
        factory: builds the layer; called for every check, always with the same random seed.
        exact: number type of the exact runs; float32 for layers that compute in float32 inside.
        perturb: standard deviation of the noise that is added to every parameter, so that none is
            left at a special value such as 0 or 1.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        *,
        exact: torch.dtype = torch.float64,
        perturb: float = 0.3,
    ) -> None:
        self.factory, self.exact, self.perturb = factory, exact, perturb
        self.hidden_size: int = self.layer().hidden_size
        self.dtypes = list(dict.fromkeys([exact, torch.float32]))

    def layer(self, dtype: torch.dtype | None = None, seed: int = 0) -> Any:
        """The layer in a number type, `exact` if absent; the same weights at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = self.factory()
        normal = draw(seed)
        with torch.no_grad():
            for p in layer.parameters():
                p += self.perturb * normal(*p.shape).to(p.dtype)
        return layer.to(dtype or self.exact)

    def x(self, batch: int, length: int, dtype: torch.dtype | None = None, seed: int = 3) -> Tensor:
        """Inputs [batch, length, hidden_size]."""
        return draw(seed)(batch, length, self.hidden_size).to(dtype or self.exact)

    @torch.no_grad()
    def state(self, layer: Any, batch: int, mask: Tensor | None = None) -> Any:
        """The state of `layer` after 4 tokens, or after those of them that `mask` has."""
        x = self.x(batch, 4, next(layer.parameters()).dtype, seed=11)
        return layer(x)[1] if mask is None else layer(x, mask=mask)[1]

    def weigh(self, tensors: Sequence[Tensor], seed: int = 5) -> Tensor:
        """A loss: the sum of all numbers in `tensors`, each with a fixed random weight."""
        normal = draw(seed)
        terms = [(normal(*x.shape).to(x.dtype) * x).sum().double() for x in tensors]
        return torch.stack(terms).sum()

    @torch.no_grad()
    def state_error(self, layer: Any, actual: Any, expected: Any, tolerance: float) -> float:
        """How far two states of `layer` are apart.

        Their tensors are compared. If these differ by more than `tolerance`, as in a cache with
        unused places, the outputs that continue from the two states are compared instead.
        """
        ours, theirs = tensors(actual), tensors(expected)
        if [p.shape for p in ours] == [p.shape for p in theirs]:
            distance = worst(ours, theirs)
            if distance <= tolerance:
                return distance
        x = self.x(len(theirs[0]), 6, next(layer.parameters()).dtype, seed=13)
        return error(layer(x, actual)[0], layer(x, expected)[0])


def error(actual: Tensor, expected: Tensor) -> float:
    """The distance in the 2-norm, relative to `expected` unless that is nearly 0.

    Infinite for NaN, and for an infinite number that is expected to be another one.
    """
    if actual.shape != expected.shape:
        shapes = f"{list(actual.shape)} instead of {list(expected.shape)}"
        raise AssertionError(f"a tensor has the shape {shapes}")
    actual, expected = actual.detach().double(), expected.detach().double()
    difference = (actual - expected).masked_fill(actual == expected, 0.0)
    scale = expected.nan_to_num(0.0, 0.0, 0.0).norm().clamp(min=1e-2)
    return float((difference.norm() / scale).nan_to_num(torch.inf))


def worst(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest `error` of tensors in order."""
    return max((error(a, b) for a, b in zip(actual, expected, strict=True)), default=0.0)


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a loss, 0 for what it does not depend on."""
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


def tensors(state: Any) -> list[Tensor]:
    """The tensors of a state, which may be nested tuples, lists and dictionaries."""
    return [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor)]


def map_state(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """The state with every tensor changed."""
    return pytree.tree_map_only(Tensor, change, state)


def row(state: Any, n: int) -> Any:
    """The state of one row of the batch, as a batch of 1."""
    return map_state(lambda part: part[n : n + 1], state)


def as_leaves(state: Any, dtype: torch.dtype) -> Any:
    """The state with tensors of its own that require gradients, where they are no integers."""
    return map_state(
        lambda p: p.detach().to(dtype, copy=True).requires_grad_() if p.is_floating_point() else p,
        state,
    )


def step_through(layer: Any, x: Tensor, state: Any) -> tuple[Tensor, list[Any]]:
    """The outputs of `layer.step` token by token, and the states before each and after the last."""
    outputs, states = [], [state]
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
        states.append(state)
    return torch.stack(outputs, 1), states
