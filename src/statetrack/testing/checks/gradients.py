"""Checks of gradients, against finite differences and between dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from statetrack.testing.case import Case, gradients, map_state, step_through, tensors, weigh
from statetrack.testing.check import Measured, check, float32_check
from statetrack.testing.inputs import draw

FINITE_DIFFERENCE = {torch.float64: (1e-5, 1e-5), torch.float32: (1e-2, 2e-2)}
"""Distance of the two points of a finite difference from the middle, and the error that passes."""


def leaves(
    case: Case, start: Any, batch: int, length: int
) -> tuple[Tensor, Any, dict[str, Tensor]]:
    """x, a state, and what one can differentiate by, by name: x, the state and the parameters."""
    x = case.x(batch, length).requires_grad_()
    state = map_state(
        lambda p: (
            p.detach().to(case.dtype, copy=True).requires_grad_() if p.is_floating_point() else p
        ),
        start,
    )
    found = {"x": x, **{f"state {n}": part for n, part in enumerate(tensors(state))}}
    found |= dict(case.layer.named_parameters())
    return x, state, {name: v for name, v in found.items() if v.requires_grad and v.numel()}


@float32_check
def finite_differences(case: Case) -> Iterator[Measured]:
    """Every gradient equals a finite difference: of the input, the first state, all parameters.

    Of outputs, and of those that continue from the final state.
    """
    case = case.at()
    distance, tolerance = FINITE_DIFFERENCE[case.exact]
    more = case.x(2, 3, seed=13)
    x, state, inputs = leaves(case, case.state(2), 2, 6)

    def loss() -> Tensor:
        y, end = case.layer(x, state)
        return weigh([y, case.layer(more, end)[0]])

    normal = draw(17)
    found = gradients(loss(), list(inputs.values()))
    for (name, variable), gradient in zip(inputs.items(), found, strict=True):
        direction = normal(*variable.shape).to(variable.dtype).to(variable.device)
        direction /= direction.norm()
        slope = _slope(loss, variable, direction, distance)
        along = (gradient * direction).sum().cpu()
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


@float32_check
def float32(case: Case) -> Iterator[Measured]:
    """In float32, outputs, final states and all gradients are those of the exact dtype."""
    start = case.at().state(3)
    found = []
    for each in (case.at(), case):
        x, state, inputs = leaves(each, start, 3, 40)
        y, end = each.layer(x, state)
        results = {"output": y} | {f"final state {n}": p for n, p in enumerate(tensors(end))}
        loss = weigh([p for p in results.values() if p.requires_grad])
        slopes = zip(inputs, gradients(loss, list(inputs.values())), strict=True)
        found.append(results | {f"gradient of {name}": slope for name, slope in slopes})
    exact, single = found
    if single["output"].dtype != torch.float32:
        raise AssertionError(f"the output is {single['output'].dtype}")
    for name, expected in exact.items():
        yield case.equal(name, single[name], expected)


@check
def state_gradients(case: Case) -> Iterator[Measured]:
    """Gradients pass through a state into the pass or steps before; detaching it stops them."""
    layer, x = case.layer, case.x(2, 10).requires_grad_()
    inputs = [x, *case.parameters]
    whole = gradients(weigh([layer(x)[0][:, 6:]]), inputs)
    if not whole[0][:, :6].any():
        raise AssertionError("outputs do not depend on earlier inputs")
    _, middle = layer(x[:, :6])
    cut = gradients(weigh([layer(x[:, 6:], middle)[0]]), inputs)
    yield case.equal("two passes", cut, whole, factor=10)
    _, middle = layer(x[:, :6])
    stepped = gradients(weigh([step_through(layer, x[:, 6:], middle)[0]]), inputs)
    yield case.equal("a pass and steps", stepped, whole, factor=10)
    detached = map_state(Tensor.detach, layer(x[:, :6])[1])
    (stopped,) = gradients(weigh([layer(x[:, 6:], detached)[0]]), [x])
    yield Measured("past a detached state", float(stopped[:, :6].norm()), 0.0)


def low_precision(case: Case) -> Iterator[Measured]:
    """Compare a layer in a narrow dtype with the same rounded weights in the exact one."""
    exact = case.build().to(case.exact)
    x = case.x(2, 20)
    y, _ = case.layer(x)
    if y.dtype != case.dtype:
        raise AssertionError(f"the output is {y.dtype}")
    expected, _ = exact(x.to(case.exact))
    yield case.equal("output", y, expected)
    wanted = gradients(weigh([expected]), list(exact.parameters()))
    yield case.equal("gradients", gradients(weigh([y]), case.parameters), wanted, factor=4)
    with torch.no_grad():
        stepped, _ = step_through(case.layer, x[:, :10], case.layer.init_state(2))
    yield case.equal("steps", stepped, expected[:, :10])


@float32_check
def bfloat16(case: Case) -> Iterator[Measured]:
    """In bfloat16, outputs, steps and gradients are near the exact ones from the same weights."""
    yield from low_precision(case.at(torch.bfloat16))


@float32_check
def float16(case: Case) -> Iterator[Measured]:
    """In float16, outputs, steps and gradients are near the exact ones from the same weights."""
    yield from low_precision(case.at(torch.float16))


@float32_check
def autocast(case: Case) -> Iterator[Measured]:
    """Under autocast to bfloat16, outputs, states, steps, gradients are near those of float32."""
    # the weights and inputs are exact in bfloat16: their rounding is not the layer's error
    case = case.at(torch.bfloat16)
    layer = case.layer.float()
    x = case.x(2, 20).float().requires_grad_()
    inputs = [x, *case.parameters]
    expected, expected_end = layer(x)
    wanted = gradients(weigh([expected]), inputs)
    with torch.autocast(case.device.type, torch.bfloat16):
        y, end = layer(x)
        with torch.no_grad():
            stepped, _ = step_through(layer, x[:, :10], layer.init_state(2))
    yield case.equal("output", y, expected)
    yield case.equal_states("state", end, expected_end)
    yield case.equal("steps", stepped, expected[:, :10])
    yield case.equal("gradients", gradients(weigh([y]), inputs), wanted, factor=4)
