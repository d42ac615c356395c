"""Check every layer on a device against the same weights in float64 on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from statetrack.layers import MIXERS, Mixer, MixerConfig
from statetrack.layers.base import VARIANT_SIZE
from statetrack.selftest.outcome import Outcome
from statetrack.testing.case import Case, gradients, map_state, step_through, tensors, weigh
from statetrack.testing.check import Check, Measured
from statetrack.testing.report import Result

WIDTH = 256  # of the layers under autocast, with heads of 64
NOISE = {VARIANT_SIZE: 0.3, WIDTH: 0.02}  # added to all weights, by the width
Tensors = dict[str, Tensor]


def layer_tests(quick: bool) -> list[tuple[str, int, MixerConfig]]:
    """List layers as (title, width, configuration): small variants, then one of each range."""
    small = [variant for config in MIXERS.values() for variant in config.variants()]
    wide = [
        replace(config(), allow_neg_eigval=signed)
        for config in MIXERS.values()
        for signed in ((False,) if config.no_switch else (False, True))
    ]
    if quick:
        first: dict[str, MixerConfig] = {}
        for config in small:
            first.setdefault(config.title, config)
        small = list(first.values())
    return [
        *((config.description, VARIANT_SIZE, config) for config in small),
        *((config.title, WIDTH, config) for config in wide),
    ]


def check_layers(
    device: torch.device, tests: list[tuple[str, int, MixerConfig]], quick: bool
) -> Iterator[Outcome]:
    """Run tests of `layer_tests`: small layers in float32, the others under autocast."""
    autocast = torch.amp.is_autocast_available(device.type)
    for title, width, config in tests:
        factory = partial(config.build, width)
        if width == VARIANT_SIZE:
            case = Case(factory, perturb=NOISE[width])
            checks = {"pass": _pass, "steps": _steps, "packed": _packed}
            results = tuple(_run(name, run, case, device) for name, run in checks.items())
            yield Outcome("layer", title, "auto", "float32", results)
        elif autocast:
            case = Case(factory, perturb=NOISE[width], dtype=torch.bfloat16)
            results = (_run("autocast", partial(_autocast, quick=quick), case, device),)
            yield Outcome("layer", title, "auto", "bfloat16", results)


def _run(name: str, run: Callable[..., Iterator[Measured]], case: Case, device: Any) -> Result:
    return Check(name, "", partial(run, device=device))(case)


def _pass(case: Case, device: torch.device) -> Iterator[Measured]:
    """Outputs, final states and all gradients of a pass that begins at a state."""
    x, start = case.x(3, 40), case.state(3)
    expected = _results(case.layer, x, start)
    found = _results(_moved(case.layer, device), x, start)
    yield from _compare(case.at(torch.float32), found, expected)


def _steps(case: Case, device: torch.device) -> Iterator[Measured]:
    """Single tokens."""
    x, start = case.x(3, 8), case.state(3)
    layer = _moved(case.layer, device)
    with torch.no_grad():
        expected, end = case.layer(x, start)
        state = _cast(start, device, torch.float32)
        found, states = step_through(layer, x.to(device, torch.float32), state)
    single = case.at(torch.float32)
    yield single.equal("outputs", found.cpu(), expected)
    yield single.equal_states("state", _cast(states[-1], "cpu", torch.float32), end)


def _packed(case: Case, device: torch.device) -> Iterator[Measured]:
    """Three sequences in one row."""
    lengths = [1, 9, 14]
    x = case.x(1, sum(lengths))
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    with torch.no_grad():
        expected = torch.cat([case.layer(part)[0] for part in x.split(lengths, 1)], 1)
        packed = {"cu_seqlens": bounds.to(device)}
        found, _ = _moved(case.layer, device)(x.to(device, torch.float32), **packed)
    yield case.at(torch.float32).equal("outputs", found.cpu(), expected)


def _autocast(case: Case, device: torch.device, quick: bool) -> Iterator[Measured]:
    """A pass and its gradients under autocast to bfloat16.

    Weights and inputs are exact in bfloat16: their rounding is not the layer's error.
    """
    layer = case.layer.double()
    bounded = "long_sequences" not in layer.unsupported
    length = 70 if bounded and not quick else 20
    x, start = case.x(2, length), layer.init_state(2)
    expected = _results(layer, x, start)
    lower = torch.autocast(device.type, torch.bfloat16)
    yield from _compare(case, _results(_moved(layer, device), x, start, lower), expected)


def _compare(case: Case, found: Tensors, expected: Tensors) -> Iterator[Measured]:
    lowered = case.dtype is torch.bfloat16
    for name, right in expected.items():
        gradient = name.startswith("gradient")
        yield case.equal(name, found[name], right, factor=4 if lowered and gradient else 1)


def _results(
    layer: Mixer, x: Tensor, state: Any, context: AbstractContextManager[Any] | None = None
) -> Tensors:
    """Outputs, final state and gradients of a weighted sum of them, by name, on the CPU."""
    device, dtype = layer.device, next(layer.parameters()).dtype
    x = x.detach().to(device, dtype, copy=True).requires_grad_()
    state = map_state(
        lambda p: p.requires_grad_() if p.is_floating_point() else p, _cast(state, device, dtype)
    )
    inputs = {"x": x, **{f"state {n}": part for n, part in enumerate(tensors(state))}}
    inputs |= dict(layer.named_parameters())
    inputs = {name: v for name, v in inputs.items() if v.requires_grad and v.numel()}
    with context or nullcontext():
        y, end = layer(x, state)
    found = {"output": y.cpu()}
    found |= {f"final state {n}": part.cpu() for n, part in enumerate(tensors(end))}
    loss = weigh([part for part in found.values() if part.requires_grad])
    for name, slope in zip(inputs, gradients(loss, list(inputs.values())), strict=True):
        found[f"gradient of {name}"] = slope.cpu()
    return found


def _cast(state: Any, device: torch.device | str, dtype: torch.dtype) -> Any:
    """Copy a state; its floating-point tensors get the dtype."""
    return map_state(
        lambda p: p.detach().to(device, dtype if p.is_floating_point() else None, copy=True), state
    )


def _moved(layer: Mixer, device: torch.device) -> Mixer:
    """A copy of a layer in float32 on a device."""
    return copy.deepcopy(layer).to(device, torch.float32)
