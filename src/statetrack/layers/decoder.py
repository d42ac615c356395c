"""Decoding: the kernels of one token, recorded once and then run by a single call.

A layer's step is a dozen small kernels; calling each from Python takes longer than their work. A
`Decoder` runs the layer's formula once with a `StepRecorder` in place of `TensorOps` and keeps the
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from statetrack.config import at_least
from statetrack.errors import UserError, check_type
from statetrack.kernels import library
from statetrack.kernels.operators import is_plain
from statetrack.kernels.transforms import observed
from statetrack.layers.common import GatedRMSNorm, HeadNorm, HeadwiseLinear, RMSNorm, ShortConv
from statetrack.layers.operations import LEAST_NORMALISER
from statetrack.ops.program import Program
from statetrack.ops.recorder import NotRecordableError

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
    """The program of a step, None if there can be none."""
    if not library.serves(*layer.parameters()):
        return None
    ops = StepRecorder(batch)
    x = ops.input(layer.hidden_size)
    own = layer.init_state(1)
    state = type(own)(*(ops.input(*part.shape[1:]) for part in own))
    try:
        y, after = ops.mix(layer, x, state)
    except NotRecordableError:
        return None
    ops.program.finish([v.buffer for v in (x, *state)], [v.buffer for v in (y, *after)])
    return ops.program


class Value:
    """A result of a recorded kernel. Its numbers do not exist yet, so torch code on it raises."""

    def __init__(self, buffer: Tensor, heads: int = 1) -> None:
        self.buffer = buffer  # [B, ...]
        self.heads = heads

    def __getattr__(self, name: str) -> NoReturn:
        raise NotRecordableError(f"a recorded value has no {name}: compute with `ops` only")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> NoReturn:
        raise NotRecordableError(f"{function} cannot be recorded: compute with `ops` only")


def _refuse(value: Value, *_: Any) -> NoReturn:
    raise NotRecordableError("Python's operators cannot be recorded: compute with `ops` only")


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    setattr(Value, f"__{_name}__", _refuse)
    setattr(Value, f"__r{_name}__", _refuse)
for _name in ("neg", "getitem", "len", "iter"):
    setattr(Value, f"__{_name}__", _refuse)


class StepRecorder:
    """The methods of `TensorOps` for one token: they record kernels.

    Values are [B, ...], with heads and factors behind each other as the kernels take them.
    """

    def __init__(self, batch: int) -> None:
        self.program = Program(batch)

    def input(self, *shape: int) -> Value:
        """Stand for an input [B, *shape] of the step."""
        return Value(self.program.empty(*shape))

    def _record(self, kernel: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """Record a kernel of the program: the value or values that it makes."""
        buffers = (x.buffer if isinstance(x, Value) else x for x in inputs)
        made = kernel(*buffers, **options)
        return Value(made) if isinstance(made, Tensor) else tuple(map(Value, made))

    def mix(self, layer: Any, x: Value, state: Any) -> Any:
        if not getattr(layer.mix, "recordable", False):
            raise NotRecordableError(f"{type(layer).__name__} does not declare its mix recordable")
        return layer.mix(x, state, self)

    def call(self, module: Any, x: Value) -> Any:
        if type(module) is nn.Identity:
            return x
        if type(module) is RMSNorm:
            return self.norm(x, module)
        if "formula" not in vars(type(module)):
            raise NotRecordableError(f"a {type(module).__name__}")
        _own(module, type(module))
        return module.formula(x, self)

    def linear(self, x: Value | Sequence[Value], module: nn.Module) -> Any:
        if isinstance(module, nn.Sequential):
            _own(module, nn.Sequential)
            for part in module:
                x = self.linear(x, part)
            return x
        weight, bias = _own(module, nn.Linear)
        values, y = [x] if isinstance(x, Value) else x, None
        for value, columns in zip(values, weight.chunk(len(values), 1), strict=True):
            y = self._record(self.program.linear, value, columns, bias if y is None else None, y)
        return y

    def split_linear(self, x: Value, module: nn.Module, sizes: Sequence[int]) -> list[Any]:
        weight, bias = _own(module, nn.Linear)
        if len(weight) != sum(sizes):
            raise NotRecordableError(f"{len(weight)} features in place of {sum(sizes)}")
        biases = [None] * len(sizes) if bias is None else bias.split(list(sizes))
        parts = zip(weight.split(list(sizes)), biases, strict=True)
        return [self._record(self.program.linear, x, *part) for part in parts]

    def block_linear(self, x: Value, module: nn.Module) -> Any:
        weight, _ = _own(module, HeadwiseLinear)
        return self._record(self.program.block_linear, x, weight)

    def concatenate(self, *parts: Value) -> tuple[Sequence[Value], Sequence[Value]]:
        return parts, parts

    def short_conv(
        self,
        x: Value,
        conv: ShortConv | None,
        window: Value,
        *,
        sizes: Sequence[int] | None = None,
        head_sizes: Sequence[int] | None = None,
    ) -> tuple[list[Value], Value]:
        own = (None,) if conv is None else (*_own(conv, ShortConv), window.buffer)
        parts, after = self.program.short_conv(
            x.buffer, *own, sizes=sizes or [x.buffer.shape[1]], head_sizes=head_sizes
        )
        return [Value(part) for part in parts], window if conv is None else Value(after)

    def activate(self, x: Value, *, silu: bool = True, head_size: int = 0) -> Any:
        return self._record(self.program.activated, x, silu=silu, head_size=head_size)

    def split_heads(self, x: Value, heads: int, repeat: int = 1, *, factors: int = 1) -> Value:
        return Value(x.buffer, heads)

    def split_factors(self, x: Value, factors: int) -> Value:
        return x

    def merge_heads(self, x: Value) -> Value:
        return x

    def cast(self, x: Value, like: Value) -> Value:
        return x

    def add(self, x: Value, y: Value) -> Any:
        one = self.program.made(torch.ones(1, dtype=torch.float32, device="cpu"))
        return self.scale_heads(x, one, y)

    def swiglu(self, x: Value) -> Any:
        return self._record(self.program.swiglu, x)

    def sigmoid_gate(self, x: Value, high: float, *, stretch: float = 0.0) -> Any:
        return self._record(self.program.sigmoid_gate, x, 0.0, high, stretch=stretch)

    def sigmoid_decay(self, x: Value, *, root: float = 1.0, signed: bool) -> Any:
        low = -1.0 if signed else 0.0
        return self._record(self.program.sigmoid_gate, x, low, 1.0, power=1 / root)

    def step_sizes(
        self,
        x: Value,
        bias: Tensor | None = None,
        log_rates: Tensor | None = None,
        *,
        least: float = 0.0,
        most: float | None = None,
        signed: bool = False,
    ) -> Any:
        limits = {"least": least, "most": most}
        return self._record(self.program.step_sizes, x, bias, log_rates, signed=signed, **limits)

    def rates(self, log_rates: Tensor, delta: Value) -> Tensor:
        return log_rates  # the kernel takes the logarithms

    def scale_heads(self, x: Value, scale: Value | Tensor, add: Value | None = None) -> Any:
        return self._record(self.program.scale_heads, x, scale, add, heads=x.heads)

    def norm(self, x: Value, module: Any, gate: Value | None = None) -> Any:
        weight, _ = _own(module, RMSNorm if gate is None else GatedRMSNorm)
        if x.buffer.numel() % len(weight):
            raise NotRecordableError(f"a norm of {len(weight)} features for {x.buffer.shape[1]}")
        first = gate is not None and module.gate_first
        return self._record(self.program.norm, x, weight, module.eps, gate, gate_first=first)

    def recurrence(
        self,
        q: Value,
        k: Value,
        v: Value,
        beta: Value | None,
        gate: Value | None,
        state: Value,
        *,
        factors: int = 1,
        scale: float | None = None,
    ) -> Any:
        return self._record(
            self.program.recurrence,
            *(q, k, v, beta, gate, state),
            key_heads=q.heads,
            factors=factors,
            gate_channels=1 if gate is None else gate.buffer.shape[1] // state.buffer.shape[1],
            scale=scale,
        )

    def selective_scan(
        self,
        u: Value,
        delta: Value,
        A: Tensor,
        B: Value,
        C: Value,
        D: Tensor,
        z: Value,
        state: Value,
        *,
        signed: bool,
    ) -> Any:
        inputs = u, delta, A, B, C, D, z, state
        return self._record(self.program.selective_scan, *inputs, signed=signed)

    def mlstm(
        self, q: Value, k: Value, v: Value, gates: Value, state: Value, m: Value, *, signed: bool
    ) -> tuple[tuple[Value, Value], Value, Value]:
        options = {"signed": signed, "least_floor": LEAST_NORMALISER}
        k, v, gate, floor, m = self._record(self.program.mlstm_write, gates, k, v, m, **options)
        o, S = self.recurrence(q, k, v, None, gate, state)
        return (o, floor), S, m

    def mlstm_output(
        self, h: tuple[Value, Value], norm: HeadNorm, skip: Tensor, c: Value, z: Value
    ) -> Any:
        weight, _ = _own(norm, HeadNorm)
        options = {"heads": h[1].buffer.shape[1], "eps": norm.eps}
        return self._record(self.program.mlstm_read, *h, weight, skip, c, z, **options)


def _own(module: nn.Module, kind: type[nn.Module]) -> tuple[Any, Any]:
    """The weight and bias of a module of exactly this class, None if it has none.

    Raise for subclasses, replaced methods and weights that are computed: they may do anything.
    """
    if type(module) is not kind or "forward" in vars(module):
        raise NotRecordableError(f"a {type(module).__name__} in place of a {kind.__name__}")
    own = dict(module.named_parameters(recurse=False))
    for name in ("weight", "bias"):
        if getattr(module, name, None) is not own.get(name):
            raise NotRecordableError(f"the {name} of a {kind.__name__} is not a parameter")
    return own.get("weight"), own.get("bias")
