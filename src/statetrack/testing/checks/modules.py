"""Checks of the layer as an `nn.Module`: copies, saved weights, hooks, threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from statetrack.testing.case import (
    TOLERANCES,
    Case,
    error,
    gradients,
    map_state,
    step_through,
    tensors,
    worst,
)
from statetrack.testing.check import Measured, check

SINGLE = torch.float32


@torch.no_grad()
def numbers(layer: Any, x: Tensor) -> list[Tensor]:
    """What a pass and two steps after it compute."""
    y, state = layer(x)
    stepped, states = step_through(layer, x[:, :2], state)
    return [y, *tensors(state), stepped, *tensors(states[-1])]


@check
def determinism(case: Case) -> Iterator[Measured]:
    """The same call twice gives the same bits: outputs, states and gradients."""
    for dtype in case.dtypes:
        layer, x = case.layer(dtype), case.x(2, 12, dtype)
        first, second = numbers(layer, x), numbers(layer, x)
        yield Measured(f"outputs and states, {dtype}", worst(second, first), 0.0)
        slopes = [gradients(case.weigh([layer(x)[0]]), list(layer.parameters())) for _ in range(2)]
        yield Measured(f"gradients, {dtype}", worst(*slopes), 0.0)


@check
def deepcopy(case: Case) -> Iterator[Measured]:
    """A deep copy computes the same bits, and shares no parameter with the layer."""
    layer, x = case.layer(SINGLE), case.x(2, 6, SINGLE)
    before = numbers(layer, x)
    other = copy.deepcopy(layer)
    yield Measured("of the copy", worst(numbers(other, x), before), 0.0)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    yield Measured("of the layer, when the copy changes", worst(numbers(layer, x), before), 0.0)


@check
def state_dict(case: Case) -> Iterator[Measured]:
    """Weights loaded from a `state_dict` give the same bits, also after earlier calls."""
    layer, other, x = case.layer(SINGLE), case.layer(SINGLE, seed=1), case.x(2, 6, SINGLE)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    numbers(other, x)
    other.load_state_dict(layer.state_dict())
    yield Measured("outputs and states", worst(numbers(other, x), numbers(layer, x)), 0.0)


@check
@torch.no_grad()
def hooks(case: Case) -> Iterator[Measured]:
    """Forward hooks of submodules run in passes and in steps, and what they change counts."""
    layer, x = case.layer(SINGLE), case.x(2, 1, SINGLE)
    state = case.state(layer, 2)
    runs: dict[str, Callable[[], Tensor]] = {
        "pass": lambda: layer(x, state)[0][:, 0],
        "step": lambda: layer.step(x[:, 0], state)[0],
    }
    runs["step"]()  # a layer may remember how it took its first step
    own = [(name, m) for name, m in layer.named_modules() if m is not layer and m._parameters]
    for name, module in own:
        halved = []
        for what, run in runs.items():
            called: list[nn.Module] = []

            def halve(module: nn.Module, _: Any, y: Any, called: Any = called) -> Any:
                called.append(module)
                return map_state(lambda part: part * 0.5, y)

            def watch(
                other: nn.Module, *_: Any, module: Any = module, called: Any = called
            ) -> None:
                if other is module:
                    called.append(other)

            handle = module.register_forward_hook(halve)
            halved.append(run())
            handle.remove()
            yield Measured(f"hook of {name}, {what}: not called", float(not called), 0.0)
            called.clear()
            handle = register_module_forward_hook(watch)
            run()
            handle.remove()
            yield Measured(f"global hook for {name}, {what}: not called", float(not called), 0.0)
        distance = error(halved[1], halved[0])
        yield Measured(f"{name} halved by a hook, step", distance, TOLERANCES[SINGLE])
    if not own:
        yield Measured("no submodules", 0.0, 0.0)


@check
@torch.no_grad()
def dispatch_modes(case: Case) -> Iterator[Measured]:
    """A dispatch mode, such as torch's counter of flops, sees the operations of steps, too."""
    layer, x = case.layer(SINGLE), case.x(2, 1, SINGLE)
    state = case.state(layer, 2)
    layer.step(x[:, 0], state)
    counts = []
    for run in (lambda: layer(x, state), lambda: layer.step(x[:, 0], state)):
        with FlopCounterMode(display=False) as counter:
            run()
        counts.append(counter.get_total_flops())
    unseen = 1 - min(1.0, counts[1] / counts[0]) if counts[0] else 0.0
    yield Measured("share of a pass's flops that a step does not show", unseen, 0.5)


@check
def threads(case: Case) -> Iterator[Measured]:
    """Threads that use one layer at once get the bits that each gets alone."""
    layer = case.layer(SINGLE)
    inputs = [case.x(2, 8, SINGLE, seed) for seed in range(4)]
    expected = [numbers(layer, x) for x in inputs]

    def work(n: int) -> float:
        return max(worst(numbers(layer, inputs[n]), expected[n]) for _ in range(3))

    with ThreadPoolExecutor(len(inputs)) as pool:
        for n, distance in enumerate(pool.map(work, range(len(inputs)))):
            yield Measured(f"thread {n}", distance, 0.0)
