"""Checks of gradients, against finite differences and between number types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from statetrack.testing.case import (
    TOLERANCES,
    Case,
    as_leaves,
    error,
    gradients,
    map_state,
    step_through,
    tensors,
    worst,
)
from statetrack.testing.check import Measured, check
from statetrack.testing.inputs import draw

FINITE_DIFFERENCE = {torch.float64: (1e-5, 1e-5), torch.float32: (1e-2, 2e-2)}
"""Distance of the two points of a finite difference from the middle, and the error that passes."""


def variables(layer: Any, x: Tensor, state: Any) -> dict[str, Tensor]:
    """What one can differentiate by, by name: the input, the state and the parameters."""
    found = {"x": x, **{f"state {n}": part for n, part in enumerate(tensors(state))}}
    found |= dict(layer.named_parameters())
    return {name: v for name, v in found.items() if v.requires_grad and v.numel()}


@check
def finite_differences(case: Case) -> Iterator[Measured]:
    """Every gradient equals a finite difference: of the input, the first state, all parameters.

    Of outputs, and of those that continue from the final state.
    """
    distance, tolerance = FINITE_DIFFERENCE[case.exact]
    layer, more = case.layer(), case.x(2, 3, seed=13)
    x, state = case.x(2, 6).requires_grad_(), as_leaves(case.state(layer, 2), case.exact)

    def loss() -> Tensor:
        y, end = layer(x, state)
        return case.weigh([y, layer(more, end)[0]])

    inputs = variables(layer, x, state)
    normal = draw(17)
    for (name, variable), gradient in zip(
        inputs.items(), gradients(loss(), list(inputs.values())), strict=True
    ):
        direction = normal(*variable.shape).to(variable.dtype)
        slope = _slope(loss, variable, direction / direction.norm(), distance)
        along = (gradient * direction / direction.norm()).sum()
        scale = max(float(gradient.norm()) / variable.numel() ** 0.5, float(slope.abs()), 1e-2)
        yield Measured(f"gradient of {name}", float((along - slope).abs()) / scale, tolerance)


@torch.no_grad()
def _slope(loss: Callable[[], Tensor], variable: Tensor, direction: Tensor, h: float) -> Tensor:
    """The slope of a loss along a direction of one variable."""
    before = variable.clone()
    values = []
    for sign in (1, -1):
        variable.copy_(before + sign * h * direction)
        values.append(loss())
    variable.copy_(before)
    return (values[0] - values[1]) / (2 * h)


@check
def float32(case: Case) -> Iterator[Measured]:
    """In float32, outputs, final states and all gradients are those of the exact number type."""
    found = []
    start = case.state(case.layer(), 3)
    for dtype in (case.exact, torch.float32):
        layer = case.layer(dtype)
        x, state = case.x(3, 40, dtype).requires_grad_(), as_leaves(start, dtype)
        y, end = layer(x, state)
        inputs = variables(layer, x, state)
        results = {"output": y} | {f"final state {n}": p for n, p in enumerate(tensors(end))}
        loss = case.weigh([p for p in results.values() if p.requires_grad])
        slopes = zip(inputs, gradients(loss, list(inputs.values())), strict=True)
        found.append(results | {f"gradient of {name}": slope for name, slope in slopes})
    exact, single = found
    if single["output"].dtype != torch.float32:
        raise AssertionError(f"the output is {single['output'].dtype}")
    for name, expected in exact.items():
        yield Measured(name, error(single[name], expected), TOLERANCES[torch.float32])


@check
def state_gradients(case: Case) -> Iterator[Measured]:
    """Gradients go through a state into the pass or steps before; a detached state stops them."""
    for dtype in case.dtypes:
        layer, tolerance = case.layer(dtype), 10 * TOLERANCES[dtype]
        x = case.x(2, 10, dtype).requires_grad_()
        inputs = [x, *layer.parameters()]
        whole = gradients(case.weigh([layer(x)[0][:, 6:]]), inputs)
        if not whole[0][:, :6].any():
            raise AssertionError("outputs do not depend on earlier inputs")
        _, middle = layer(x[:, :6])
        cut = gradients(case.weigh([layer(x[:, 6:], middle)[0]]), inputs)
        yield Measured(f"two passes, {dtype}", worst(cut, whole), tolerance)
        _, middle = layer(x[:, :6])
        stepped = gradients(case.weigh([step_through(layer, x[:, 6:], middle)[0]]), inputs)
        yield Measured(f"a pass and steps, {dtype}", worst(stepped, whole), tolerance)
        detached = map_state(Tensor.detach, layer(x[:, :6])[1])
        (stopped,) = gradients(case.weigh([layer(x[:, 6:], detached)[0]]), [x])
        yield Measured(f"past a detached state, {dtype}", float(stopped[:, :6].norm()), 0.0)


def low_precision(case: Case, dtype: torch.dtype) -> Iterator[Measured]:
    """A layer in a narrow number type against the same rounded weights in the exact one."""
    layer, tolerance = case.layer(dtype), TOLERANCES[dtype]
    exact = case.layer(dtype).to(case.exact)
    x = case.x(2, 20, dtype)
    y, _ = layer(x)
    if y.dtype != dtype:
        raise AssertionError(f"the output is {y.dtype}")
    expected, _ = exact(x.to(case.exact))
    yield Measured("output", error(y, expected), tolerance)
    slopes = gradients(case.weigh([y]), list(layer.parameters()))
    exact_slopes = gradients(case.weigh([expected]), list(exact.parameters()))
    yield Measured("gradients", worst(slopes, exact_slopes), 4 * tolerance)
    with torch.no_grad():
        stepped, _ = step_through(layer, x[:, :10], layer.init_state(2))
    yield Measured("steps", error(stepped, expected[:, :10]), tolerance)


@check
def bfloat16(case: Case) -> Iterator[Measured]:
    """In bfloat16, outputs, steps and gradients are near the exact ones from the same weights."""
    yield from low_precision(case, torch.bfloat16)


@check
def float16(case: Case) -> Iterator[Measured]:
    """In float16, outputs, steps and gradients are near the exact ones from the same weights."""
    yield from low_precision(case, torch.float16)


@check
def autocast(case: Case) -> Iterator[Measured]:
    """Under autocast to bfloat16, outputs, states, steps, gradients are near those of float32."""
    # weights and inputs that bfloat16 holds: what they lose in it is not the layer's
    layer, tolerance = case.layer(torch.bfloat16).float(), TOLERANCES[torch.bfloat16]
    x = case.x(2, 20, torch.bfloat16).float().requires_grad_()
    inputs = [x, *layer.parameters()]
    expected, expected_end = layer(x)
    wanted = gradients(case.weigh([expected]), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        y, end = layer(x)
        with torch.no_grad():
            stepped, _ = step_through(layer, x[:, :10], layer.init_state(2))
    yield Measured("output", error(y, expected), tolerance)
    yield Measured("state", case.state_error(layer, end, expected_end, tolerance), tolerance)
    yield Measured("steps", error(stepped, expected[:, :10]), tolerance)
    yield Measured("gradients", worst(gradients(case.weigh([y]), inputs), wanted), 4 * tolerance)
