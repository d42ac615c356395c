"""Kernels of flash-linear-attention that do the work of ours, as our ops launch them.

The ops of the backend fla run forward and backward on small batches; each kernel that they would
launch is recorded with its arguments instead. Where the package tunes block sizes or warps on the
GPU, `choose_config` takes one of its lists. It has no selective scan.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from benchmarks.gpu_kernels.compiled import TARGETS
from statetrack.kernels import gpu
from statetrack.kernels.gpu import KernelExample
from statetrack.kernels.launch import Launch
from statetrack.ops import delta_product, delta_rule, gated_linear_attention
from statetrack.selftest.inputs import (
    delta_product_inputs,
    delta_rule_inputs,
    linear_attention_inputs,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that there is no GPU
    from fla.modules.causal_conv1d import causal_conv1d
    from fla.ops.utils.cache import CachedAutotuner

CHUNKS, LOOP = 128, 64  # tokens: two chunks; the most for which the ops take a loop over tokens


@dataclass(frozen=True)
class Work:
    """An op of the backend fla at the head sizes of one of our examples."""

    name: str
    size: str
    run: Callable[..., Any]  # of tensors by name
    inputs: Callable[[int], dict[str, Tensor]]  # by the number of tokens


def _conv(x: Tensor, weight: Tensor) -> Any:
    return causal_conv1d(x, weight, activation="silu")


def _op(name: str, op: Callable[..., Any], make: Callable[..., Any], *shape: int) -> Work:
    H, K, V = shape[:3]

    def inputs(tokens: int) -> dict[str, Tensor]:
        made = make(1, tokens, *shape)
        halves = {x: made[x].bfloat16() for x in "qkv"}
        return {x: tensor.float() for x, tensor in made.items()} | halves

    return Work(name, f"H {H}, K {K}, V {V}", partial(op, backend="fla"), inputs)


WORKS = (
    _op("delta rule", delta_rule, delta_rule_inputs, 16, 64, 64),
    _op("gated delta rule", delta_rule, partial(delta_rule_inputs, gate="g"), 16, 64, 64),
    _op(
        "gated delta product",
        partial(delta_product, num_householder=2),
        partial(delta_product_inputs, gate="g"),
        8, 128, 128, 2,
    ),
    _op(
        "GLA",
        gated_linear_attention,
        partial(linear_attention_inputs, gate="g", per_channel=True),
        4, 128, 256,
    ),
    _op(
        "scalar gate",
        gated_linear_attention,
        partial(linear_attention_inputs, gate="g"),
        4, 128, 256,
    ),
    Work(
        "convolution",
        "D 2048, W 4",
        _conv,
        lambda T: {"x": torch.zeros(1, T, 2048).bfloat16(), "weight": torch.ones(2048, 4)},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """A kernel of flash-linear-attention."""

    work: str  # what it is part of, such as "GLA backward"
    example: KernelExample
    num_stages: int

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.example.name


def recorded_peers() -> list[Peer]:
    """Record the kernels of all works, each once: in chunks, then in a loop over tokens."""
    found: dict[str, Peer] = {}
    for work in WORKS:
        for tokens in (CHUNKS,) if work.run is _conv else (CHUNKS, LOOP):
            for training in (True, False):
                for peer in _recorded(work, tokens, training):
                    found.setdefault(f"{peer.work} {peer.name} {peer.example.arguments}", peer)
    return list(found.values())


def choose_config(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an autotuned kernel with the configuration nearest to 4 warps and 3 stages.

    Among those, with the greatest block sizes.
    """
    self.nargs = dict(zip(self.arg_names, args, strict=False))

    def distance(config: Any) -> tuple[int, int, int]:
        warps, stages = abs(config.num_warps - 4), abs(config.num_stages - 3)
        sizes = [x for x in config.kwargs.values() if isinstance(x, int)]
        return warps, stages, -sum(sizes)

    config = min(self.prune_configs(kwargs), key=distance)
    return self.fn.run(*args, **kwargs, **config.all_kwargs())


def _recorded(work: Work, tokens: int, training: bool) -> Iterator[Peer]:
    leaves = {name: x.requires_grad_(training) for name, x in work.inputs(tokens).items()}
    with _recording() as launches, torch.set_grad_enabled(training):
        o, _ = work.run(**leaves)
        forward = len(launches)
        if training:
            o.float().sum().backward()
    for n, (launch, stages) in enumerate(launches):
        direction = "forward" if n < forward else "backward"
        name = launch.kernel.__name__
        yield Peer(f"{work.name} {direction}", launch.example(name, work.size, 0, 0), stages)


@contextmanager
def _recording() -> Iterator[list[tuple[Launch, int]]]:
    """Record launches, with their stages, and run none."""
    launches = []

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        warps, stages = kwargs.pop("num_warps", 4), kwargs.pop("num_stages", 3)
        names = [p.name for p in self.params]
        kwargs = {name: x for name, x in kwargs.items() if name in names}
        given = signature(self.fn).bind(*args, **kwargs)
        given.apply_defaults()
        launches.append((Launch(self, 1, warps, dict(given.arguments)), stages))

    absent = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: TARGETS["sm80"].triton,
    )
    patches = [
        mock.patch.object(JITFunction, "run", record),
        mock.patch.object(Autotuner, "run", choose_config),
        mock.patch.object(CachedAutotuner, "run", choose_config),
        mock.patch.object(gpu, "refusal", return_value=None),
        mock.patch.object(driver, "_active", absent),
    ]
    for patch in patches:
        patch.start()
    try:
        yield launches
    finally:
        for patch in patches:
            patch.stop()
