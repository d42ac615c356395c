"""The layer under test in one dtype, with inputs, states and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from statetrack.testing.check import Measured
from statetrack.testing.inputs import draw

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Relative errors that pass, by the dtype of the computation."""


class Case:
    """Builds the layer under test, its inputs and its states.

    Args:
        factory: builds the layer; called for every check, always with the same random seed.
        exact: dtype of the exact runs; float32 for layers that always compute in float32.
        perturb: standard deviation of the noise that is added to every parameter, so that none
            keeps a special value such as 0 or 1.
        dtype: dtype of this case; `exact` if absent.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        exact: torch.dtype = torch.float64,
        perturb: float = 0.3,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.factory, self.exact, self.perturb = factory, exact, perturb
        self.dtype = dtype or exact
        self.dtypes = list(dict.fromkeys([exact, torch.float32]))
        self.tolerance = TOLERANCES[self.dtype]

    def at(self, dtype: torch.dtype | None = None) -> Case:
        """The case in another dtype (`exact` if absent), with a layer of its own."""
        return Case(self.factory, self.exact, self.perturb, dtype)

    def build(self, seed: int = 0) -> Any:
        """A new layer; the same weights for the same seed, whatever the dtype."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = self.factory()
        normal = draw(seed)
        with torch.no_grad():
            for p in layer.parameters():
                p += self.perturb * normal(*p.shape).to(p.dtype).to(p.device)
        return layer.to(self.dtype)

    @cached_property
    def layer(self) -> Any:
        """The layer that `build` makes with seed 0; the same one at every access."""
        return self.build()

    @property
    def device(self) -> torch.device:
        """Where the factory makes its layers; the CPU for one without parameters."""
        return next((p.device for p in self.parameters), torch.device("cpu"))

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of `layer`, in the order of its definition."""
        return list(self.layer.parameters())

    def x(self, batch: int, length: int, seed: int = 3) -> Tensor:
        """Inputs [batch, length, hidden_size]."""
        drawn = draw(seed)(batch, length, self.layer.hidden_size)
        return drawn.to(self.dtype).to(self.device)  # in this order: not all have float64

    @torch.no_grad()
    def state(self, batch: int, mask: Tensor | None = None) -> Any:
        """The state after 4 tokens, or after those of them that `mask` has."""
        x = self.x(batch, 4, seed=11)
        return self.layer(x)[1] if mask is None else self.layer(x, mask=mask)[1]

    def equal(self, where: str, actual: Any, expected: Any, factor: float = 1) -> Measured:
        """Compare tensors, or sequences of them, up to `factor` times the tolerance."""
        distance = worst(tensors(actual), tensors(expected))
        return Measured(where, distance, factor * self.tolerance)

    @torch.no_grad()
    def equal_states(
        self, where: str, actual: Any, expected: Any, tolerance: float | None = None
    ) -> Measured:
        """Compare states.

        If their tensors differ by more than `tolerance`, as in a cache with unused places, the
        outputs that continue from the two states are compared instead.
        """
        if tolerance is None:
            tolerance = self.tolerance
        ours, theirs = tensors(actual), tensors(expected)
        if [p.shape for p in ours] == [p.shape for p in theirs]:
            distance = worst(ours, theirs)
            if distance <= tolerance:
                return Measured(where, distance, tolerance)
        x = self.x(len(theirs[0]), 6, seed=13)
        distance = error(self.layer(x, actual)[0], self.layer(x, expected)[0])
        return Measured(where, distance, tolerance)

    def equal_passes(self, where: str, actual: Any, expected: Any) -> Iterator[Measured]:
        """Compare outputs and final states (y, state)."""
        yield self.equal(where, actual[0], expected[0])
        yield self.equal_states(f"state, {where}", actual[1], expected[1])


def same_bits(where: str, actual: Any, expected: Any) -> Measured:
    """Compare tensors, or sequences of them, bit for bit."""
    return Measured(where, worst(tensors(actual), tensors(expected)), 0.0)


def error(actual: Tensor, expected: Tensor) -> float:
    """The distance in the 2-norm, relative to `expected` unless that is nearly 0.

    Infinite for NaN, and for an infinite number that is expected to be another one.
    """
    if actual.shape != expected.shape:
        shapes = f"{list(actual.shape)} instead of {list(expected.shape)}"
        raise AssertionError(f"a tensor has the shape {shapes}")
    actual, expected = (x.detach().cpu().double() for x in (actual, expected))
    difference = (actual - expected).masked_fill(actual == expected, 0.0)
    scale = expected.nan_to_num(0.0, 0.0, 0.0).norm().clamp(min=1e-2)
    return float((difference.norm() / scale).nan_to_num(torch.inf))


def worst(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest `error` of tensors in order."""
    return max((error(a, b) for a, b in zip(actual, expected, strict=True)), default=0.0)


def weigh(outputs: Sequence[Tensor]) -> Tensor:
    """A loss: the sum of all numbers in `outputs`, each with a fixed random weight."""
    normal = draw(5)
    weighted = [(normal(*y.shape).to(y.dtype).to(y.device) * y).sum() for y in outputs]
    return torch.stack([part.cpu().double() for part in weighted]).sum()


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a loss, 0 for what it does not depend on."""
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


def tensors(state: Any) -> list[Tensor]:
    """The tensors of a state, which may be nested tuples, lists and dictionaries."""
    return [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor)]


def map_state(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """Apply a function to every tensor of a state."""
    return pytree.tree_map_only(Tensor, change, state)


def row(state: Any, n: int) -> Any:
    """The state of one row of the batch, as a batch of 1."""
    return map_state(lambda part: part[n : n + 1], state)


def step_through(layer: Any, x: Tensor, state: Any) -> tuple[Tensor, list[Any]]:
    """The outputs of `layer.step` token by token, and the states before each and after the last."""
    outputs, states = [], [state]
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
        states.append(state)
    return torch.stack(outputs, 1), states
