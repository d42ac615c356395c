"""What the self-test times: ops with each backend, and layers, beside other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from statetrack.errors import UserError
from statetrack.layers import MIXERS
from statetrack.ops import (
    delta_product,
    delta_rule,
    gated_linear_attention,
    selective_scan,
    short_conv,
)
from statetrack.ops.backends import BACKENDS
from statetrack.selftest.inputs import (
    delta_product_inputs,
    delta_rule_inputs,
    linear_attention_inputs,
    selective_scan_inputs,
)
from statetrack.selftest.outcome import dtype_name
from statetrack.selftest.peers import FLA_LAYERS, fla_layer, mamba_ssm_scan
from statetrack.selftest.timing import OURS, Call, Timing, differentiated, time_candidates
from statetrack.testing.case import tensors
from statetrack.testing.inputs import Tensors, draw

Prepare = Callable[[], Call]
SMALL_ONLY = ("full_matrix", "diagonal_rnn")  # baselines for small tasks
NAIVE_LENGTH = 64  # longer ones take a loop too long
# to compile an unrolled loop takes minutes
COMPILED = ("delta_rule", "delta_rule with g", "selective_scan [0,1]", "selective_scan [-1,1]")


@dataclass(frozen=True)
class Size:
    """How much is timed."""

    batch: int
    length: int
    heads: int
    head: int  # K = V
    channels: int  # of the scan, with 16 states each
    width: int  # of layers
    dtypes: tuple[torch.dtype, ...]
    rounds: int
    compiled: bool = False  # whether torch.compile of the definition is a candidate


def sizes(device: torch.device, quick: bool) -> list[Size]:
    """Choose the sizes for a device."""
    if quick:
        return [Size(1, 16, 2, 16, 32, 64, (torch.float32,), rounds=1)]
    if device.type != "cuda":
        return [Size(4, 256, 4, 32, 256, 128, (torch.float32,), rounds=3)]
    both = (torch.bfloat16, torch.float32)
    return [
        Size(256, 40, 4, 32, 256, 128, both, rounds=20, compiled=True),  # formal languages
        Size(8, 2048, 16, 64, 2048, 1024, both, rounds=10),  # language models
    ]


def timed_ops(size: Size) -> dict[str, tuple[Callable[..., Any], Tensors]]:
    """Return the ops, by name, as functions of their tensors; without states."""
    B, T, H, K = size.batch, size.length, size.heads, size.head
    D = size.channels
    normal = draw(0)
    scan = _without(selective_scan_inputs(B, T, D, 16, skip=False, gate=False))
    return {
        "delta_rule": (delta_rule, _without(delta_rule_inputs(B, T, H, K, K))),
        "delta_rule with g": (
            delta_rule,
            _without(_soft(delta_rule_inputs(B, T, H, K, K, gate="g"))),
        ),
        "delta_product": (
            partial(delta_product, num_householder=2),
            _without(delta_product_inputs(B, T, H, K, K, 2)),
        ),
        "gated_linear_attention, g of channels": (
            gated_linear_attention,
            _without(_soft(linear_attention_inputs(B, T, H, K, K, gate="g", per_channel=True))),
        ),
        "gated_linear_attention, decay of heads": (
            gated_linear_attention,
            _without(linear_attention_inputs(B, T, H, K, K, gate="decay")),
        ),
        "selective_scan [0,1]": (selective_scan, scan),
        "selective_scan [-1,1]": (partial(selective_scan, allow_neg_eigval=True), scan),
        "short_conv": (
            partial(short_conv, silu=True),
            {"x": normal(B, T, D), "weight": normal(D, 4)},
        ),
    }


def _without(inputs: Tensors) -> Tensors:
    return {name: x for name, x in inputs.items() if name != "initial_state"}


def _soft(inputs: Tensors) -> Tensors:
    """Gates as models have them: none is 0."""
    return {**inputs, "g": inputs["g"].clamp(min=-1.0)}


def time_ops(device: torch.device, size: Size) -> Iterator[Timing]:
    """Time forward and backward of ops with every backend that can run on a device."""
    for name, (op, inputs) in timed_ops(size).items():
        for dtype in size.dtypes:
            own = {n: x.to(device, dtype) for n, x in inputs.items()}
            candidates: dict[str, Prepare] = {OURS: partial(differentiated, op, own)}
            for backend in BACKENDS:
                run = partial(op, backend=backend)
                if (backend != "naive" or size.length <= NAIVE_LENGTH) and _serves(run, own):
                    candidates[f"{OURS}, {backend}"] = partial(differentiated, run, own)
            if size.compiled and name in COMPILED and dtype is size.dtypes[0]:
                candidates["torch.compile of the definition"] = partial(_compiled, op, own)
            if name == "selective_scan [0,1]" and device.type == "cuda":
                candidates["mamba-ssm"] = partial(_mamba_ssm, own)
            shape = " x ".join(map(str, next(iter(own.values())).shape))
            what = f"{name}, {shape}, {dtype_name(dtype)}"
            yield from time_candidates(what, candidates, device, size.rounds)


def _serves(run: Callable[..., Any], inputs: Tensors) -> bool:
    """Whether a backend takes these tensors; if it fails otherwise, timing it tells how."""
    try:
        with torch.no_grad():
            run(**inputs)
    except UserError:
        return False
    except Exception:
        return True
    return True


def _compiled(op: Callable[..., Any], inputs: Tensors) -> Call:
    torch.compiler.reset()  # there is a limit on how often one function is compiled
    naive = torch.compile(partial(op, backend="naive"), dynamic=False)
    return differentiated(naive, inputs)


def _mamba_ssm(inputs: Tensors) -> Call:
    return differentiated(mamba_ssm_scan(), inputs)


def time_layers(device: torch.device, size: Size) -> Iterator[Timing]:
    """Time forward and backward of layers, on GPUs under autocast to bfloat16, beside fla's.

    Ours are in [-1,1] where they have the switch, and so are fla's.
    """
    gpu = device.type == "cuda"
    for name, config in MIXERS.items():
        if name in SMALL_ONLY:
            continue
        options: dict[str, Any] = {} if config.no_switch else {"allow_neg_eigval": True}
        if "num_heads" in {field.name for field in fields(config)}:
            options["num_heads"] = size.heads
        mixer = config(**options)
        build = partial(mixer.build, size.width)
        candidates: dict[str, Prepare] = {OURS: partial(_training, build, device, size)}
        if gpu and name in FLA_LAYERS:
            build_fla = partial(fla_layer, name, size.width, size.heads)
            candidates["flash-linear-attention"] = partial(_training, build_fla, device, size)
        dtype = dtype_name(torch.bfloat16 if gpu else torch.float32)
        what = f"{mixer.title}, {size.batch} x {size.length} x {size.width}, {dtype}"
        yield from time_candidates(what, candidates, device, size.rounds, comparable=False)


def _training(build: Callable[[], nn.Module], device: torch.device, size: Size) -> Call:
    """Outputs of a layer and the gradients of its input and weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = build().to(device)
    x = draw(0)(size.batch, size.length, size.width).float().to(device).requires_grad_()
    inputs = [x, *layer.parameters()]

    def call() -> list[Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            y = tensors(layer(x))[0]
        return [y, *torch.autograd.grad(y.float().sum(), inputs, allow_unused=True)]

    return call
