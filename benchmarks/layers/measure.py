"""Check, then time: ours in both ranges and the others' with the same weights, taking turns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.layers.peers import PEERS, Decoder, Peer, Step
from benchmarks.layers.shapes import Shape, build, ranges
from benchmarks.timing import Progress, Tensors, compare, reading, seconds
from statetrack.layers import Mixer
from statetrack.layers.operations import TensorOps

PROMPT = 3  # tokens before those that are timed: caches are made when the first one is read
DECODE_ROUNDS = 3  # per round: decoding is short, and so more easily disturbed
# seconds after which a candidate that had two turns takes no more
ENOUGH = 5.0

Call = Callable[[], Tensors]
# Makes everything ready, the state after the prompt included, for one call that is timed.
Begin = Callable[[], Call]


def measure(
    layer: str, shape: Shape, environment: str | None, rounds: int, say: Progress
) -> dict[str, Any]:
    """The seconds of one call of each candidate; everything is checked first."""
    torch.manual_seed(0)
    peers = [
        peer(shape)
        for peer in PEERS
        if peer.layer == layer
        and peer.environment in (None, environment)
        and (shape.kind == "training" or issubclass(peer, Decoder))
    ]
    for other in peers[1:]:  # the peers of a layer have the same names for their weights
        other.module.load_state_dict(peers[0].module.state_dict())
    weights = peers[0].weights() if peers else build(layer, shape).state_dict()

    begins: dict[str, Begin] = {}
    for name, options in ranges(layer).items():
        mixer = build(layer, shape, **options)
        mixer.load_state_dict(weights)
        say(f"checking {name} against the definition")
        check_definition(name, mixer, shape)
        begins[name] = prepare(mixer, shape)
    for peer in peers:
        say(f"checking {peer.name}")
        same = build(layer, shape, **peer.same_with)
        same.load_state_dict(weights)
        begins[peer.name] = prepare(peer, shape)
        compare(peer.name, begins[peer.name]()(), prepare(same, shape)()())

    rounds = rounds if shape.kind == "training" else DECODE_ROUNDS * rounds
    times: dict[str, list[float]] = {name: [] for name in begins}
    for done in range(rounds):
        say(f"round {done + 1} of {rounds}")
        for name, begin in begins.items():
            if len(times[name]) < 2 or sum(times[name]) < ENOUGH:
                times[name].append(seconds(begin()))
    tokens = shape.batch * shape.length
    return {
        "title": shape.title,
        "kind": shape.kind,
        "batch": shape.batch,
        "length": shape.length,
        "width": shape.width,
        "weight bytes": sum(4 * w.numel() for w in weights.values()),
        "memory bytes per second": reading() if shape.kind == "decoding" else None,
        "candidates": [
            {
                "name": name,
                "turns": len(taken),
                "seconds": min(taken),
                "tokens per second": tokens / min(taken),
            }
            for name, taken in times.items()
        ],
    }


def prepare(layer: Mixer | Peer, shape: Shape) -> Begin:
    """A layer's training step, or its decoding, on inputs that are the same for all."""
    module = layer if isinstance(layer, Mixer) else layer.module
    generator = torch.Generator().manual_seed(1)
    x, dy = torch.randn(2, shape.batch, shape.length, shape.width, generator=generator)
    prompt = torch.randn(shape.batch, PROMPT, shape.width, generator=generator)
    if shape.kind == "training":
        run = _forward(layer) if isinstance(layer, Mixer) else layer.forward
        call = training(run, module, x, dy)
        return lambda: call
    assert isinstance(layer, Mixer | Decoder)
    begin = _begin(layer) if isinstance(layer, Mixer) else layer.begin
    return decoding(begin, prompt, [x_t.contiguous() for x_t in x.unbind(1)])


def training(run: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor, dy: Tensor) -> Call:
    """Forward and backward: gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    inputs = [x, *module.parameters()]

    def call() -> Tensors:
        y = run(x)
        dx, *_ = torch.autograd.grad(y, inputs, dy)
        return {"y": y.detach(), "dx": dx}

    return call


def decoding(begin: Callable[[Tensor], Step], prompt: Tensor, tokens: Iterable[Tensor]) -> Begin:
    """Token by token, the state carried along; the last output tells whether all were right."""

    @torch.no_grad()
    def ready() -> Call:
        step = begin(prompt)

        @torch.no_grad()
        def call() -> Tensors:
            for x in tokens:
                y = step(x)
            return {"y": y}

        return call

    return ready


def _forward(layer: Mixer) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x)[0]


def _begin(layer: Mixer) -> Callable[[Tensor], Step]:
    def begin(prompt: Tensor) -> Step:
        _, state = layer(prompt)
        decoder = layer.decoder(len(prompt))

        def step(x: Tensor) -> Tensor:
            nonlocal state
            y, state = decoder.step(x, state)
            return y

        return step

    return begin


def check_definition(who: str, layer: Mixer, shape: Shape) -> None:
    """What is timed of ours, on two short sequences, against the defining loop in float64."""
    exact = copy.deepcopy(layer).double()
    x = torch.randn(2, 9, shape.width, dtype=torch.float64)
    if shape.kind == "decoding":
        with torch.no_grad():
            y, _ = exact.mix(x, exact.init_state(2), TensorOps(backend="naive"))
            *prompt, last = x.float().unbind(1)
            step = _begin(layer)(torch.stack(prompt[:PROMPT], 1))
            for x_t in prompt[PROMPT:]:
                step(x_t)
            compare(who, {"y": step(last)}, {"y": y[:, -1]})
        return

    def results(module: Mixer, x: Tensor, backend: str) -> Tensors:
        x = x.clone().requires_grad_()
        y, _ = module.mix(x, module.init_state(2), TensorOps(backend=backend))
        names, parameters = zip(*module.named_parameters(), strict=True)
        dx, *gradients = torch.autograd.grad(y.square().sum(), [x, *parameters])
        return {"y": y.detach(), "dx": dx, **dict(zip(names, gradients, strict=True))}

    compare(who, results(layer, x.float(), "auto"), results(exact, x, "naive"))
