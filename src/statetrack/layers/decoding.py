"""Single steps as programs of native kernels, which are recorded once for a layer and batch size.

Only where nothing can tell the difference but by the time: without gradients, autocast and tracing,
in float32 on the CPU, with the layer's own modules, unhooked, and not too many rows. Else
`Mixer.step` takes the ordinary way.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from statetrack.kernels import library
from statetrack.kernels.operators import is_plain
from statetrack.kernels.transforms import observed
from statetrack.layers.common import (
    BetaGate,
    GatedRMSNorm,
    HeadNorm,
    HeadwiseLinear,
    RMSNorm,
    ShortConv,
)
from statetrack.ops.program import Program
from statetrack.ops.recorder import NotRecordableError

if TYPE_CHECKING:
    from statetrack.layers.base import Mixer

MOST_ROWS = 256  # for more, torch's matrix products make up for the rest
MOST_PROGRAMS = 8  # of a layer, for different batch sizes: each has buffers
KNOWN = {
    *(nn.Linear, nn.Sequential, ShortConv, HeadwiseLinear),
    *(BetaGate, RMSNorm, GatedRMSNorm, HeadNorm),
}


def step(layer: Mixer, x: Tensor, state: Any) -> tuple[Tensor, Any] | None:
    """One token x [B, hidden_size]: y and the next state; None if it must go the ordinary way."""
    # a subclass must say itself that its steps are recorded so: it may have another `mix`
    if "record" not in type(layer).__dict__ or len(x) > MOST_ROWS or observed():
        return None
    if _global_forward_hooks or _global_forward_pre_hooks:
        return None
    inputs = [x, *state]
    for part in inputs:
        if not is_plain(part) or part.dtype is not torch.float32:
            return None
    if not library.serves(*inputs) or torch.is_autocast_enabled("cpu"):
        return None
    program = _program(layer, len(x))
    if program is None:
        return None
    y, *parts = program.run([part.contiguous() for part in inputs])
    return y, type(state)(*parts)


class _Programs(threading.local):
    """Each thread has its own: a program works in buffers."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[Mixer, dict[int, tuple[_Look, Program | None]]]
        self.of = WeakKeyDictionary()


_programs = _Programs()


def _program(layer: Mixer, batch: int) -> Program | None:
    """The program of the layer as it is now, from an earlier step if nothing has changed."""
    known = _programs.of.setdefault(layer, {})
    look, program = known.pop(batch, (None, None))
    if look is None or not look.is_unchanged():
        look, program = _Look(layer), _record(layer, batch)
        if len(known) >= MOST_PROGRAMS:
            known.pop(next(iter(known)))
    known[batch] = look, program  # the one that was used last comes last
    return program


class _Look:
    """What a program depends on, to be compared in a few microseconds.

    Modules, hooks, methods and numbers of the layer, and where its parameters lie: all of it is in
    dictionaries, whose sizes and values are looked at. The values of parameters may change.
    """

    def __init__(self, layer: Mixer) -> None:
        self.threads = torch.get_num_threads()
        self.sizes: list[tuple[Any, int]] = []
        self.values: list[tuple[dict[str, Any], str, object]] = []
        self.places: list[tuple[Tensor, int, torch.dtype, tuple[int, ...]]] = []
        for module in layer.modules():
            own = module.__dict__
            hooks = module._forward_hooks, module._forward_pre_hooks
            self.sizes += [(d, len(d)) for d in (own, module._modules, module._parameters, *hooks)]
            for d in (module._modules, module._parameters):
                self.values += [(d, key, value) for key, value in d.items()]
            self.values += [
                (own, key, value)
                for key, value in own.items()
                if isinstance(value, (int, float)) or key == "config"
            ]
        for p in layer.parameters():
            self.places.append((p, p.data_ptr(), p.dtype, p.stride()))

    def is_unchanged(self) -> bool:
        """Whether all is where and as it was."""
        if torch.get_num_threads() != self.threads:
            return False
        for d, size in self.sizes:
            if len(d) != size:
                return False
        for d, key, value in self.values:
            if d.get(key) is not value:
                return False
        for p, address, dtype, stride in self.places:
            if p.data_ptr() != address or p.dtype is not dtype or p.stride() != stride:
                return False
        return True


@torch.no_grad()
def _record(layer: Mixer, batch: int) -> Program | None:
    """The program of a step; None if the layer is not as it was made, or no program can be."""
    for module in layer.modules():
        plain = type(module) in KNOWN or module is layer
        if not plain or {"forward", "mix", "record"} & module.__dict__.keys():
            return None
        if module._forward_hooks or module._forward_pre_hooks:
            return None
    program = Program(batch)
    x = program.empty(layer.hidden_size)
    own = layer.init_state(1)
    state = type(own)(*(program.empty(*part.shape[1:]) for part in own))
    try:
        y, after = layer.record(program, x, state)
    except NotRecordableError:
        return None
    if not _reads_all(program, layer):
        return None
    program.finish([x, *state], [y, *after])
    return program


def _reads_all(program: Program, layer: Mixer) -> bool:
    """Whether a program reads all parameters of the layer, and nothing else of anybody's.

    A bias that a projection has got since, for instance, is in no program.
    """
    ends = {p.data_ptr(): p.data_ptr() + 4 * p.numel() for p in layer.parameters()}
    read = set()
    for x in program.read:
        found = [a for a, end in ends.items() if a <= x.data_ptr() < end]
        if not found:
            return False
        read.add(found[0])
    return read == set(ends)
