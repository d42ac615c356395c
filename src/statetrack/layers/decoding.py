"""Single steps as programs of native kernels, which are recorded once for a layer and batch size.

Only where nothing can tell the difference but by the time: without gradients, autocast and tracing,
in float32 on the CPU, with the layer's own modules, unhooked, and not too many rows. Else
`Mixer.step` takes the ordinary way.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from statetrack.layers.common import (
    BetaGate,
    GatedRMSNorm,
    HeadNorm,
    HeadwiseLinear,
    RMSNorm,
    ShortConv,
)
from statetrack.ops import native
from statetrack.ops.program import Program

if TYPE_CHECKING:
    from statetrack.layers.base import Mixer

MOST_ROWS = 256  # for more, torch's matrix products make up for the rest
MOST_PROGRAMS = 8  # of a layer, for different batch sizes: each has buffers
KNOWN = {
    *(nn.Linear, nn.Sequential, ShortConv, HeadwiseLinear),
    *(BetaGate, RMSNorm, GatedRMSNorm, HeadNorm),
}


class _Programs(threading.local):
    """Each thread has its own: a program works in buffers."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[Mixer, dict[int, tuple[list[object], Program | None]]]
        self.of = WeakKeyDictionary()


_programs = _Programs()


def step(layer: Mixer, x: Tensor, state: Any) -> tuple[Tensor, Any] | None:
    """One token x [B, hidden_size]: y and the next state; None if it must go the ordinary way."""
    if torch.is_grad_enabled() or len(x) > MOST_ROWS or torch.compiler.is_compiling():
        return None
    inputs = [x, *state]
    for part in inputs:
        if type(part) is not Tensor or part.dtype is not torch.float32:
            return None
    if not native.serves(*inputs) or torch.is_autocast_enabled("cpu"):
        return None
    program = _program(layer, len(x))
    if program is None:
        return None
    y, *parts = program.run([part.contiguous() for part in inputs])
    return y, type(state)(*parts)


def _program(layer: Mixer, batch: int) -> Program | None:
    """The program of the layer as it is now, from an earlier step if nothing has changed."""
    known = _programs.of.setdefault(layer, {})
    if batch in known:
        seen, program = known[batch]
        if seen == _look(layer):
            return program
    program = _record(layer, batch) if _plain(layer) else None
    known.pop(batch, None)
    while len(known) >= MOST_PROGRAMS:
        known.pop(next(iter(known)))  # the oldest
    known[batch] = _look(layer), program
    return program


def _look(layer: Mixer) -> list[object]:
    """What a program depends on: modules, hooks, where the parameters lie."""
    seen: list[object] = [torch.get_num_threads()]
    modules: list[nn.Module] = [layer]
    for module in modules:  # grows while it is read
        children = [child for child in module._modules.values() if child is not None]
        modules += children
        seen += children
        seen += [None if p is None else p.data_ptr() for p in module._parameters.values()]
        if module._forward_hooks or module._forward_pre_hooks:
            seen.append(module)
    return seen


def _plain(layer: Mixer) -> bool:
    """Whether the layer records its steps and all in it is as the layer made it.

    A subclass must say itself that its steps are recorded so: it may have another `mix`.
    """
    return (
        "record" in type(layer).__dict__
        and all(type(m) in KNOWN or m is layer for m in layer.modules())
        and not any(m._forward_hooks or m._forward_pre_hooks for m in layer.modules())
        and all(
            type(p) is nn.Parameter and p.is_cpu and p.dtype is torch.float32 and p.is_contiguous()
            for p in layer.parameters()
        )
    )


@torch.no_grad()
def _record(layer: Mixer, batch: int) -> Program:
    program = Program(batch)
    x, state = torch.empty(batch, layer.hidden_size), layer.init_state(batch)
    y, after = layer.record(program, x, state)
    inputs: Sequence[Tensor] = [x, *state]
    program.finish(inputs, [y, *after])
    return program
