"""Checks of what torch does with a layer: transforms, checkpointing, tracing, other tensors.

Layers run in float32, as fast kernels do, and are compared with plain calls in the exact dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint as run_checkpointed

from statetrack.testing.case import Case, gradients, tensors, weigh
from statetrack.testing.check import Measured, float32_check, slow_check
from statetrack.testing.checks.gradients import FINITE_DIFFERENCE


def functional(layer: Any) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """The layer's output as a function of its parameters and x, and the parameters."""

    def output(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,))[0]

    return output, {name: p.detach() for name, p in layer.named_parameters()}


@float32_check
def vmap(case: Case) -> Iterator[Measured]:
    """`torch.func.vmap` over another dimension of the input equals a loop."""
    output, parameters = functional(case.layer)
    exact = case.at().layer
    x = torch.stack([case.x(2, 6, seed) for seed in range(3)])
    y = torch.func.vmap(output, (None, 0))(parameters, x)
    expected = torch.stack([exact(part.to(case.exact))[0] for part in x])
    yield case.equal("output", y, expected)


@float32_check
def per_sample_gradients(case: Case) -> Iterator[Measured]:
    """`torch.func.vmap` of `torch.func.grad` equals the gradients of each sequence by itself."""
    output, parameters = functional(case.layer)
    exact, x = case.at().layer, case.x(3, 6)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return output(parameters, x[None]).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for n in range(3):
        y, _ = exact(x[n : n + 1].to(case.exact))
        names, own = zip(*exact.named_parameters(), strict=True)
        wanted = gradients(y.square().sum(), own)
        yield case.equal(f"sequence {n}", [found[name][n] for name in names], wanted, factor=10)


@float32_check
def forward_mode(case: Case) -> Iterator[Measured]:
    """Forward-mode derivatives of passes and steps equal finite differences."""
    exact = case.at()
    h, tolerance = FINITE_DIFFERENCE[case.exact]
    factor = max(tolerance / case.tolerance, 10)
    x, direction = case.x(2, 6), case.x(2, 6, seed=4)
    state, exact_state = case.state(2), exact.state(2)
    runs: dict[str, Callable[[Any, Tensor, Any], Tensor]] = {
        "pass": lambda layer, x, state: layer(x, state)[0],
        "step": lambda layer, x, state: layer.step(x[:, 0], state)[0],
    }
    for what, run in runs.items():
        with torch.no_grad():
            ends = [
                run(exact.layer, x.to(case.exact) + s * h * direction, exact_state) for s in (1, -1)
            ]
        expected = (ends[0] - ends[1]) / (2 * h)
        tangent = torch.func.jvp(lambda x, run=run: run(case.layer, x, state), (x,), (direction,))
        yield case.equal(f"torch.func.jvp, {what}", tangent[1], expected, factor)
        with torch.no_grad(), forward_ad.dual_level():
            y = run(case.layer, forward_ad.make_dual(x, direction), state)
            dual = forward_ad.unpack_dual(y).tangent
            dual = torch.zeros_like(expected) if dual is None else dual.clone()
        yield case.equal(f"dual tensors, {what}", dual, expected, factor)


@float32_check
def double_backward(case: Case) -> Iterator[Measured]:
    """Second derivatives equal finite differences of gradients, for the input and parameters."""
    h, tolerance = FINITE_DIFFERENCE[case.exact]
    x, direction = case.x(2, 6).requires_grad_(), case.x(2, 6, seed=4)

    def slopes(layer: Any, x: Tensor, graph: bool = False) -> tuple[Tensor, ...]:
        loss = layer(x)[0].square().sum()
        return torch.autograd.grad(loss, [x, *layer.parameters()], create_graph=graph)

    along = (slopes(case.layer, x, graph=True)[0] * direction).sum()
    found = gradients(along, [x, *case.parameters])
    exact, middle = case.at().layer, x.detach().to(case.exact)
    ends = [slopes(exact, (middle + s * h * direction).requires_grad_()) for s in (1, -1)]
    expected = [(a - b) / (2 * h) for a, b in zip(*ends, strict=True)]
    yield case.equal("gradients", found, expected, max(tolerance / case.tolerance, 10))


def checkpointed(case: Case, reentrant: bool) -> Iterator[Measured]:
    """Compare the gradients of a pass with checkpointing, which repeats it, and without."""
    x = case.x(2, 12).requires_grad_()
    inputs = [x, *case.parameters]

    def run(x: Tensor) -> tuple[Tensor, ...]:
        y, state = case.layer(x)
        return y, *tensors(state)

    plain, repeated = run(x), run_checkpointed(run, x, use_reentrant=reentrant)
    used = [n for n, part in enumerate(plain) if part.requires_grad]
    found = []
    for results in (plain, repeated):
        for p in inputs:
            p.grad = None
        weigh([results[n] for n in used]).backward()
        found.append([torch.zeros_like(p) if p.grad is None else p.grad for p in inputs])
    yield case.equal("gradients", found[1], found[0])


@float32_check
def checkpointing(case: Case) -> Iterator[Measured]:
    """Activation checkpointing with `use_reentrant=False` does not change gradients."""
    yield from checkpointed(case, reentrant=False)


@float32_check
def reentrant_checkpointing(case: Case) -> Iterator[Measured]:
    """Activation checkpointing with `use_reentrant=True` does not change gradients."""
    yield from checkpointed(case, reentrant=True)


Shapes = list[tuple[torch.Size, torch.dtype]]


def shapes(layer: Any, x: Tensor) -> Shapes:
    """Shapes and dtypes of a pass, one that continues it, and a step."""
    y, state = layer(x)
    more, after = layer(x, state)
    y_t, end = layer.step(x[:, 0], after)
    return [(part.shape, part.dtype) for part in tensors((y, more, y_t, state, after, end))]


def same_shapes(found: Shapes, expected: Shapes) -> Measured:
    """Count the tensors with other shapes or dtypes than expected."""
    wrong = sum(a != b for a, b in zip(found, expected, strict=True))
    return Measured("tensors of another shape or dtype", wrong, 0.0)


@float32_check
def meta(case: Case) -> Iterator[Measured]:
    """On the meta device the layer can be built, and outputs and states have the right shapes."""
    x = case.x(2, 6)
    with torch.device("meta"):
        layer = case.factory().to("meta", case.dtype)
    yield same_shapes(shapes(layer, x.to("meta")), shapes(case.layer, x))


@slow_check
def fake_tensors(case: Case) -> Iterator[Measured]:
    """Fake tensors, as in tracing, give outputs, states and gradients of the right shapes."""
    x = case.x(2, 6)
    expected = shapes(case.layer, x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(x).requires_grad_()
        yield same_shapes(shapes(case.layer, x), expected)
        inputs = [x, *case.parameters]
        found = gradients(case.layer(x)[0].sum(), inputs)
    wrong = sum(g.shape != p.shape for g, p in zip(found, inputs, strict=True))
    yield Measured("gradients of another shape", wrong, 0.0)


@slow_check
def compile(case: Case) -> Iterator[Measured]:
    """`torch.compile` does not change outputs, states or gradients (backend aot_eager)."""
    other = case.build()
    torch.compiler.reset()
    x = case.x(2, 6).requires_grad_()
    got = torch.compile(other, backend="aot_eager")(x)
    expected = case.layer(x)
    yield from case.equal_passes("output", got, expected)
    found = gradients(weigh([got[0]]), [x, *other.parameters()])
    wanted = gradients(weigh([expected[0]]), [x, *case.parameters])
    yield case.equal("gradients", found, wanted)
    torch.compiler.reset()


@slow_check
def export(case: Case) -> Iterator[Measured]:
    """`torch.export` of a pass gives a program with the same outputs and states."""
    program = torch.export.export(case.layer, (case.x(2, 6),)).module()
    x = case.x(2, 6, seed=19)
    yield from case.equal_passes("output", program(x), case.layer(x))
