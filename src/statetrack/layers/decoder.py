"""Decoding: the kernels of one token, recorded once and then run by a single call.

A layer's step is a dozen small kernels; calling each from Python takes longer than their work. A
`Decoder` runs the layer's formula once with a `StepRecorder` in place of `TensorOps` and keeps the
kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statetrack.config import at_least
from statetrack.errors import UserError, check_type
from statetrack.kernels import library
from statetrack.kernels.operators import is_plain
from statetrack.kernels.program import NotRecordableError, Program
from statetrack.kernels.transforms import observed
from statetrack.layers.step_recorder import StepRecorder

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]

MAX_ROWS = 256  # of a recorded batch: for more, torch's matrix products are faster


class Decoder:
    """One token at a time through recorded kernels, without gradients.

    `step` gives the values of the layer's own `step` up to rounding. The decoder refers to the
    parameters and sees changes in place. Make another one after replacing weights or modules,
    moving the layer or changing the number of threads. Forward hooks do not run. A decoder works in
    buffers of its own: use one for each thread.

    Where nothing can be recorded (`recorded` is False), `step` is the layer's: for more than 256
    rows, for another dtype than float32, without the native kernels, for layers that are not
    declared `recordable` and for modules that were replaced.

    Args:
        layer: a layer, or a block of a model.
        batch_size: the number of sequences.
        plain: instead of recording, run this in place of `layer.step`.

    Example:
        >>> import torch
        >>> from statetrack import DeltaNet
        >>> layer = DeltaNet(64)
        >>> decoder, state = layer.decoder(batch_size=1), layer.init_state(1)
        >>> with torch.no_grad():
        ...     y, state = decoder.step(torch.randn(1, 64), state)
    """

    def __init__(self, layer: Any, batch_size: int, plain: Step | None = None) -> None:
        check_type("batch_size", batch_size, int, "a whole number")
        at_least("batch_size", batch_size, 1)
        self.layer = layer
        self.batch_size = batch_size
        self._plain: Step = plain or layer.step
        self._program = None
        if plain is None and batch_size <= MAX_ROWS:
            self._program = _record(layer, batch_size)

    @property
    def recorded(self) -> bool:
        """Whether `step` runs recorded kernels."""
        return self._program is not None

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Process one token: x_t [B, hidden_size] and the state before it.

        Returns:
            y_t [B, hidden_size] and the next state.

        Raises:
            UserError: if B is not `batch_size`, if gradients are enabled, under autocast or
                tracing, or for tensors other than float32 on the CPU.
        """
        refuse_observers()
        expected = [self.batch_size, self.layer.hidden_size]
        if not isinstance(x_t, Tensor) or list(x_t.shape) != expected:
            got = list(x_t.shape) if isinstance(x_t, Tensor) else type(x_t).__name__
            raise UserError(f"this decoder's x_t must be [B, hidden_size] = {expected}; got {got}")
        state = self.layer.check_state(state, self.batch_size)
        if self._program is None:
            return self._plain(x_t, state)
        inputs = [x_t, *state]
        for part in inputs:
            if not (part.dtype is torch.float32 and part.is_cpu and is_plain(part)):
                kind = f"{part.dtype} on {part.device}"
                raise UserError(f"this decoder takes float32 tensors on the CPU; got {kind}")
        y, *parts = self._program.run([part.contiguous() for part in inputs])
        return y, type(state)(*parts)


def refuse_observers() -> None:
    """Raise if gradients, tracing, a transform or autocast is to act on a recorded step."""
    if torch.is_grad_enabled():
        raise UserError("a decoder has no gradients: call it under torch.no_grad(), or use `step`")
    if observed():
        raise UserError("a decoder cannot be traced or transformed: use `step` of the layer")
    if torch.is_autocast_enabled("cpu"):
        raise UserError("a decoder computes in float32, not under autocast: use `step`")


@torch.no_grad()
def _record(layer: Any, batch: int) -> Program | None:
    """Record a step of the layer; return None if that is not possible."""
    if not library.serves(*layer.parameters()):
        return None
    ops = StepRecorder(batch)
    x = ops.empty(layer.hidden_size)
    own = layer.init_state(1)
    state = type(own)(*(ops.empty(*part.shape[1:]) for part in own))
    try:
        y, after = ops.mix(layer, x, state)
    except NotRecordableError:
        return None
    ops.program.finish([v.buffer for v in (x, *state)], [v.buffer for v in (y, *after)])
    return ops.program
