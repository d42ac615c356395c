"""Checks of what torch does with a layer: transforms, checkpointing, tracing, other tensors.

Layers run in float32, as fast kernels do. Expected numbers are plain ones in the exact number type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint as run_checkpointed

from statetrack.testing.case import TOLERANCES, Case, error, gradients, tensors, worst
from statetrack.testing.check import Measured, check, slow_check
from statetrack.testing.checks.gradients import FINITE_DIFFERENCE
from statetrack.testing.inputs import draw

SINGLE = torch.float32
TOLERANCE = TOLERANCES[SINGLE]


def outputs(layer: Any) -> Callable[..., Tensor]:
    """The layer as a function of its parameters and x."""

    def function(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,))[0]

    return function


def detached(layer: Any) -> dict[str, Tensor]:
    """The parameters of a layer by name, as plain tensors."""
    return {name: p.detach() for name, p in layer.named_parameters()}


@check
def vmap(case: Case) -> Iterator[Measured]:
    """`torch.func.vmap` over a further dimension of the input equals a loop."""
    layer, exact = case.layer(SINGLE), case.layer()
    x = torch.stack([case.x(2, 6, SINGLE, seed) for seed in range(3)])
    y = torch.func.vmap(outputs(layer), (None, 0))(detached(layer), x)
    expected = torch.stack([exact(part.to(case.exact))[0] for part in x])
    yield Measured("output", error(y, expected), TOLERANCE)


@check
def per_sample_gradients(case: Case) -> Iterator[Measured]:
    """`torch.func.vmap` of `torch.func.grad` equals the gradients of each sequence by itself."""
    layer, exact = case.layer(SINGLE), case.layer()
    x, run = case.x(3, 6, SINGLE), outputs(layer)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return run(parameters, x[None]).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(detached(layer), x)
    for n in range(3):
        y, _ = exact(x[n : n + 1].to(case.exact))
        names, parameters = zip(*exact.named_parameters(), strict=True)
        wanted = gradients(y.square().sum(), parameters)
        distance = worst([found[name][n] for name in names], wanted)
        yield Measured(f"sequence {n}", distance, 10 * TOLERANCE)


@check
def forward_mode(case: Case) -> Iterator[Measured]:
    """Forward-mode derivatives of passes and steps equal finite differences."""
    layer, exact = case.layer(SINGLE), case.layer()
    h, tolerance = FINITE_DIFFERENCE[case.exact]
    tolerance = max(tolerance, 10 * TOLERANCE)
    x, direction = case.x(2, 6, SINGLE), case.x(2, 6, SINGLE, seed=4)
    state, exact_state = case.state(layer, 2), case.state(exact, 2)
    runs: dict[str, Callable[[Any, Tensor, Any], Tensor]] = {
        "pass": lambda layer, x, state: layer(x, state)[0],
        "step": lambda layer, x, state: layer.step(x[:, 0], state)[0],
    }
    for what, run in runs.items():
        with torch.no_grad():
            ends = [run(exact, x.to(case.exact) + s * h * direction, exact_state) for s in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * h)
        tangent = torch.func.jvp(lambda x, run=run: run(layer, x, state), (x,), (direction,))[1]
        yield Measured(f"torch.func.jvp, {what}", error(tangent, expected), tolerance)
        with torch.no_grad(), forward_ad.dual_level():
            y = run(layer, forward_ad.make_dual(x, direction), state)
            dual = forward_ad.unpack_dual(y).tangent
            tangent = torch.zeros_like(expected) if dual is None else dual.clone()
        yield Measured(f"dual tensors, {what}", error(tangent, expected), tolerance)


@check
def double_backward(case: Case) -> Iterator[Measured]:
    """Second derivatives equal finite differences of gradients, for the input and parameters."""
    h, tolerance = FINITE_DIFFERENCE[case.exact]
    direction = case.x(2, 6, SINGLE, seed=4)

    def slopes(layer: Any, x: Tensor, graph: bool = False) -> tuple[Tensor, ...]:
        loss = layer(x)[0].square().sum()
        return torch.autograd.grad(loss, [x, *layer.parameters()], create_graph=graph)

    layer, x = case.layer(SINGLE), case.x(2, 6, SINGLE).requires_grad_()
    along = (slopes(layer, x, graph=True)[0] * direction).sum()
    found = gradients(along, [x, *layer.parameters()])
    exact, middle = case.layer(), x.detach().to(case.exact)
    ends = [slopes(exact, (middle + s * h * direction).requires_grad_()) for s in (1, -1)]
    expected = [(a - b) / (2 * h) for a, b in zip(*ends, strict=True)]
    yield Measured("gradients", worst(found, expected), max(tolerance, 10 * TOLERANCE))


def checkpointed(case: Case, reentrant: bool) -> Iterator[Measured]:
    """The gradients of a pass that torch's checkpointing repeats, against a plain one."""
    layer = case.layer(SINGLE)
    x = case.x(2, 12, SINGLE).requires_grad_()
    inputs = [x, *layer.parameters()]

    def run(x: Tensor) -> tuple[Tensor, ...]:
        y, state = layer(x)
        return y, *tensors(state)

    plain, repeated = run(x), run_checkpointed(run, x, use_reentrant=reentrant)
    used = [n for n, part in enumerate(plain) if part.requires_grad]
    found = []
    for results in (plain, repeated):
        for p in inputs:
            p.grad = None
        case.weigh([results[n] for n in used]).backward()
        found.append([torch.zeros_like(p) if p.grad is None else p.grad for p in inputs])
    yield Measured("gradients", worst(found[1], found[0]), TOLERANCE)


@check
def checkpointing(case: Case) -> Iterator[Measured]:
    """Activation checkpointing with `use_reentrant=False` does not change gradients."""
    yield from checkpointed(case, reentrant=False)


@check
def reentrant_checkpointing(case: Case) -> Iterator[Measured]:
    """Activation checkpointing with `use_reentrant=True` does not change gradients."""
    yield from checkpointed(case, reentrant=True)


Shapes = list[tuple[torch.Size, torch.dtype]]


def shapes(layer: Any, x: Tensor) -> Shapes:
    """Shapes and types of what a pass, one that continues, and a step give."""
    y, state = layer(x)
    more, after = layer(x, state)
    y_t, end = layer.step(x[:, 0], after)
    return [(part.shape, part.dtype) for part in (y, more, y_t, *tensors((state, after, end)))]


def wrong_shapes(found: Shapes, expected: Shapes) -> Measured:
    """How many tensors have other shapes or types than expected."""
    wrong = sum(a != b for a, b in zip(found, expected, strict=True))
    return Measured("tensors of another shape or type", wrong, 0.0)


@check
def meta(case: Case) -> Iterator[Measured]:
    """On the meta device the layer can be built, and gives outputs and states of right shapes."""
    x = case.x(2, 6, SINGLE)
    expected = shapes(case.layer(SINGLE), x)
    with torch.device("meta"):
        layer = case.factory().to("meta", SINGLE)
    yield wrong_shapes(shapes(layer, x.to("meta")), expected)


@slow_check
def fake_tensors(case: Case) -> Iterator[Measured]:
    """Fake tensors, as tracing uses them, give outputs, states and gradients of right shapes."""
    layer, x = case.layer(SINGLE), case.x(2, 6, SINGLE)
    expected = shapes(layer, x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(x).requires_grad_()
        yield wrong_shapes(shapes(layer, x), expected)
        inputs = [x, *layer.parameters()]
        found = gradients(layer(x)[0].sum(), inputs)
    wrong = sum(g.shape != p.shape for g, p in zip(found, inputs, strict=True))
    yield Measured("gradients of another shape", wrong, 0.0)


@slow_check
def compile(case: Case) -> Iterator[Measured]:
    """`torch.compile` does not change outputs, states or gradients (backend aot_eager)."""
    layer, other = case.layer(SINGLE), case.layer(SINGLE)
    torch.compiler.reset()
    compiled = torch.compile(other, backend="aot_eager")
    x = case.x(2, 6, SINGLE).requires_grad_()
    y, end = compiled(x)
    expected, expected_end = layer(x)
    yield Measured("output", error(y, expected), TOLERANCE)
    yield Measured("state", case.state_error(layer, end, expected_end, TOLERANCE), TOLERANCE)
    found = gradients(case.weigh([y]), [x, *other.parameters()])
    wanted = gradients(case.weigh([expected]), [x, *layer.parameters()])
    yield Measured("gradients", worst(found, wanted), TOLERANCE)
    torch.compiler.reset()


@slow_check
def export(case: Case) -> Iterator[Measured]:
    """`torch.export` of a pass gives a program with the same outputs and states."""
    layer = case.layer(SINGLE)
    program = torch.export.export(layer, (case.x(2, 6, SINGLE),)).module()
    x = draw(19)(2, 6, case.hidden_size).to(SINGLE)
    y, end = program(x)
    expected, expected_end = layer(x)
    yield Measured("output", error(y, expected), TOLERANCE)
    yield Measured("state", case.state_error(layer, end, expected_end, TOLERANCE), TOLERANCE)
