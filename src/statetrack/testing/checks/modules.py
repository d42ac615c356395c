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
    Case,
    gradients,
    map_state,
    same_bits,
    step_through,
    tensors,
    weigh,
    worst,
)
from statetrack.testing.check import Measured, check, float32_check


@torch.no_grad()
def numbers(layer: Any, x: Tensor) -> list[Tensor]:
    """All tensors that a pass and two steps after it compute."""
    y, state = layer(x)
    stepped, states = step_through(layer, x[:, :2], state)
    return tensors((y, state, stepped, states[-1]))


@torch.no_grad()
def shift(layer: Any) -> None:
    """Change all parameters."""
    for p in layer.parameters():
        p.add_(1.0)


@check
def determinism(case: Case) -> Iterator[Measured]:
    """The same call twice gives the same bits: outputs, states and gradients."""
    layer, x = case.layer, case.x(2, 12)
    first = numbers(layer, x)
    yield same_bits("outputs and states", numbers(layer, x), first)
    slopes = [gradients(weigh([layer(x)[0]]), case.parameters) for _ in range(2)]
    yield same_bits("gradients", *slopes)


@float32_check
def deepcopy(case: Case) -> Iterator[Measured]:
    """A deep copy computes the same bits, and shares no parameter with the layer."""
    layer, x = case.layer, case.x(2, 6)
    before = numbers(layer, x)
    other = copy.deepcopy(layer)
    yield same_bits("of the copy", numbers(other, x), before)
    shift(other)
    yield same_bits("of the layer, when the copy changes", numbers(layer, x), before)


@float32_check
def state_dict(case: Case) -> Iterator[Measured]:
    """Weights loaded from a `state_dict` give the same bits, also after earlier calls."""
    other, x = case.build(seed=1), case.x(2, 6)
    shift(other)
    numbers(other, x)
    other.load_state_dict(case.layer.state_dict())
    yield same_bits("outputs and states", numbers(other, x), numbers(case.layer, x))


@float32_check
@torch.no_grad()
def hooks(case: Case) -> Iterator[Measured]:
    """Forward hooks of submodules are called in passes and steps, and can change outputs."""
    layer, x = case.layer, case.x(2, 1)
    state = case.state(2)
    runs: dict[str, Callable[[], Tensor]] = {
        "pass": lambda: layer(x, state)[0][:, 0],
        "step": lambda: layer.step(x[:, 0], state)[0],
    }
    runs["step"]()  # a layer may cache how it took its first step
    others = [(name, module) for name, module in layer.named_modules() if module is not layer]
    own = [(name, module) for name, module in others if list(module.parameters(recurse=False))]
    for name, module in own:
        halved = []
        for what, run in runs.items():
            called: list[nn.Module] = []

            def halve(module: nn.Module, _: Any, y: Any, called: Any = called) -> Any:
                called.append(module)
                return map_state(lambda part: part * 0.5, y)

            def watch(module: nn.Module, *_: Any, called: Any = called) -> None:
                called.append(module)

            handle = module.register_forward_hook(halve)
            halved.append(run())
            handle.remove()
            yield Measured(f"hook of {name}, {what}: not called", float(not called), 0.0)
            called.clear()
            handle = register_module_forward_hook(watch)
            run()
            handle.remove()
            missed = all(other is not module for other in called)
            yield Measured(f"global hook for {name}, {what}: not called", float(missed), 0.0)
        yield case.equal(f"{name} halved by a hook, step", halved[1], halved[0])
    if not own:
        yield Measured("no submodules", 0.0, 0.0)


@float32_check
@torch.no_grad()
def dispatch_modes(case: Case) -> Iterator[Measured]:
    """A dispatch mode, such as torch's counter of flops, sees the operations of steps, too."""
    layer, x, state = case.layer, case.x(2, 1), case.state(2)
    layer.step(x[:, 0], state)
    counts = []
    for run in (lambda: layer(x, state), lambda: layer.step(x[:, 0], state)):
        with FlopCounterMode(display=False) as counter:
            run()
        counts.append(counter.get_total_flops())
    unseen = 1 - min(1.0, counts[1] / counts[0]) if counts[0] else 0.0
    yield Measured("share of a pass's flops that a step does not show", unseen, 0.5)


@float32_check
def threads(case: Case) -> Iterator[Measured]:
    """Threads that use one layer at once get the same bits as each alone."""
    layer = case.layer
    inputs = [case.x(2, 8, seed) for seed in range(4)]
    expected = [numbers(layer, x) for x in inputs]

    def work(n: int) -> float:
        return max(worst(numbers(layer, inputs[n]), expected[n]) for _ in range(3))

    with ThreadPoolExecutor(len(inputs)) as pool:
        for n, distance in enumerate(pool.map(work, range(len(inputs)))):
            yield Measured(f"thread {n}", distance, 0.0)
