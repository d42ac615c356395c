"""The operations of `layers/operations.py` for one token: they record kernels, see `Decoder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from statetrack.kernels.interface import STRUCTURES
from statetrack.kernels.program import NotRecordableError, Program
from statetrack.layers.common import GatedRMSNorm, HeadNorm, HeadwiseLinear, RMSNorm, ShortConv
from statetrack.layers.operations import LEAST_NORMALISER
from statetrack.ops.short_conv.native import MAX_WIDTH


class Value:
    """A result of a recorded kernel. Its numbers do not exist yet, so torch code on it raises."""

    def __init__(self, buffer: Tensor, heads: int = 1) -> None:
        self.buffer = buffer  # [B, ...]
        self.heads = heads

    @property
    def features(self) -> int:
        return self.buffer.shape[1]

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

    Values are [B, features], heads and factors flattened as the kernels take them; states [B, ...].
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.program = Program()

    def empty(self, *shape: int) -> Value:
        """Allocate the output of a kernel [B, *shape], or what stands for an input of the step."""
        buffer = torch.empty(self.batch, *shape, dtype=torch.float32, device="cpu")
        return Value(self.program.buffer(buffer))

    def _ones(self, *shape: int) -> Tensor:
        return self.program.buffer(torch.ones(shape, dtype=torch.float32, device="cpu"))

    def _add(self, kernel: str, **arguments: Any) -> None:
        buffers = {k: x.buffer if isinstance(x, Value) else x for k, x in arguments.items()}
        self.program.add(kernel, **buffers)

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

    def linear(self, x: Any, module: nn.Module) -> Any:
        if isinstance(module, nn.Sequential):
            _own(module, nn.Sequential)
            for part in module:
                x = self.linear(x, part)
            return x
        if isinstance(module, HeadwiseLinear) and isinstance(x, Value):
            return self._block_linear(x, module)
        weight, bias = _own(module, nn.Linear)
        values, y = [x] if isinstance(x, Value) else x, None
        for value, columns in zip(values, weight.chunk(len(values), 1), strict=True):
            y = self._linear(value, columns, bias if y is None else None, y)
        return y

    def split_linear(self, x: Value, module: nn.Module, sizes: Sequence[int]) -> list[Value]:
        weight, bias = _own(module, nn.Linear)
        if len(weight) != sum(sizes):
            raise NotRecordableError(f"{len(weight)} features in place of {sum(sizes)}")
        biases = [None] * len(sizes) if bias is None else bias.split(list(sizes))
        parts = zip(weight.split(list(sizes)), biases, strict=True)
        return [self._linear(x, *part) for part in parts]

    def _linear(
        self, x: Value, weight: Tensor, bias: Tensor | None, add: Value | None = None
    ) -> Value:
        """W x + bias + add, for x [B, in] and weight [out, in], which may be columns of another."""
        out, size = weight.shape
        if x.features != size:
            raise NotRecordableError(f"{x.features} features for a weight of {size}")
        y = self.empty(out)
        sizes = {"weight_row": weight.stride(0), "rows": self.batch, "in": size, "out": out}
        self._add("linear", x=x, weight=weight, bias=bias, add=add, y=y, **sizes)
        return y

    def _block_linear(self, x: Value, module: HeadwiseLinear) -> Value:
        weight, _ = _own(module, HeadwiseLinear)
        blocks, size, _ = weight.shape
        if x.features != blocks * size:
            raise NotRecordableError(f"{x.features} features for {blocks} blocks of {size}")
        y = self.empty(x.features)
        sizes = {"rows": self.batch, "blocks": blocks, "size": size}
        self._add("block_linear", x=x, weight=weight, y=y, **sizes)
        return y

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
        sizes = sizes or [x.features]
        if conv is None:
            return self._short_conv(x, sizes, head_sizes)[0], window
        weight, bias = _own(conv, ShortConv)
        return self._short_conv(x, sizes, head_sizes, weight, bias=bias, window=window)

    def activate(self, x: Value, *, silu: bool = True, head_size: int = 0) -> Value:
        return self._short_conv(x, [x.features], [head_size], silu=silu)[0][0]

    def _short_conv(
        self,
        x: Value,
        sizes: Sequence[int],
        head_sizes: Sequence[int] | None,
        weight: Tensor | None = None,
        silu: bool = True,
        **options: Any,
    ) -> tuple[list[Value], Value]:
        """The kernel of `ops.short_conv`. Without a weight, only what follows the convolution."""
        weight = self._ones(sum(sizes), 1) if weight is None else weight
        D, W = weight.shape
        if W > MAX_WIDTH or x.features != D:
            raise NotRecordableError(f"no convolution of width {W} on {D} channels")
        parts, after = [self.empty(size) for size in sizes], self.empty(W - 1, D)
        table = (STRUCTURES["Part"] * len(sizes))()
        for row, y, head in zip(table, parts, head_sizes or [0] * len(sizes), strict=True):
            row.y, row.size, row.head = y.buffer.data_ptr(), y.features, head
        shape = {"row": D, "token": D, "B": self.batch, "T": 1, "D": D, "W": W}
        options |= {"parts": table, "num_parts": len(sizes), "silu": silu, "eps": 1e-6}
        self._add("short_conv_forward", x=x, weight=weight, final=after, **shape, **options)
        return parts, after

    def split_heads(self, x: Value, heads: int, repeat: int = 1, *, factors: int = 1) -> Value:
        return Value(x.buffer, heads)

    def split_factors(self, x: Value, factors: int) -> Value:
        return x

    def merge_heads(self, x: Value) -> Value:
        return x

    def cast(self, x: Value, like: Value) -> Value:
        return x

    def add(self, x: Value, y: Value) -> Value:
        return self.scale_heads(x, self._ones(x.heads), y)

    def scale_heads(self, x: Value, scale: Value | Tensor, add: Value | None = None) -> Value:
        y = self.empty(x.features)
        sizes = {"rows": self.batch, "heads": x.heads, "size": x.features // x.heads}
        per_row = isinstance(scale, Value)
        self._add("scale_heads", x=x, scale=scale, add=add, y=y, scale_per_row=per_row, **sizes)
        return y

    def swiglu(self, x: Value) -> Value:
        y = self.empty(x.features // 2)
        self._add("swiglu_forward", x=x, y=y, rows=self.batch, size=y.features)
        return y

    def sigmoid_gate(self, x: Value, high: float, *, stretch: float = 0.0) -> Value:
        return self._sigmoid(x, low=0.0, high=high, power=1.0, stretch=stretch)

    def sigmoid_decay(self, x: Value, *, root: float = 1.0, signed: bool) -> Value:
        return self._sigmoid(x, low=-1.0 if signed else 0.0, high=1.0, power=1 / root, stretch=0.0)

    def _sigmoid(self, x: Value, **options: float) -> Value:
        """low + (high - low) sigmoid(x)^power, or stretched past its ends and clipped."""
        y = self.empty(*x.buffer.shape[1:])
        self._add("sigmoid_gate", x=x, y=y, count=x.buffer.numel(), **options)
        return y

    def step_sizes(
        self,
        x: Value,
        bias: Tensor | None = None,
        log_rates: Tensor | None = None,
        *,
        least: float = 0.0,
        most: float | None = None,
        signed: bool = False,
    ) -> tuple[Value, Value]:
        delta, gate = self.empty(x.features), self.empty(x.features)
        sizes = {"rows": self.batch, "size": x.features, "negative": signed}
        limits = {"least": least, "most": float("inf") if most is None else most}
        tensors = {"x": x, "bias": bias, "rate": log_rates, "delta": delta, "gate": gate}
        self._add("step_sizes", **tensors, **sizes, **limits)
        return delta, gate

    def rates(self, log_rates: Tensor, delta: Value) -> Tensor:
        return log_rates  # the kernel takes the logarithms

    def norm(self, x: Value, module: Any, gate: Value | None = None) -> Value:
        weight, _ = _own(module, RMSNorm if gate is None else GatedRMSNorm)
        rows, rest = divmod(x.buffer.numel(), len(weight))
        if rest:
            raise NotRecordableError(f"a norm of {len(weight)} features for {x.features}")
        y = self.empty(x.features)
        values = {"x": x, "weight": weight, "y": y, "rows": rows, "size": len(weight)}
        if gate is None:
            self._add("rms_norm_forward", **values, eps=module.eps)
            return y
        options = {"eps": module.eps, "gate_first": module.gate_first}
        if module.groups == 1:
            self._add("gated_norm", **values, gate=gate, **options)
            return y
        # the kernel has one weight for all rows, so that each group of each row is one call
        size = len(weight) // module.groups
        weights = weight.view(module.groups, size)
        x_, gate_, y_ = (v.buffer.view(-1, module.groups, size) for v in (x, gate, y))
        for row in range(len(x_)):
            for part in zip(x_[row], gate_[row], y_[row], weights, strict=True):
                names = zip(("x", "gate", "y", "weight"), part, strict=True)
                self._add("gated_norm", **dict(names), rows=1, size=size, **options)
        return y

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
    ) -> tuple[Value, Value]:
        B, H, K, V = state.buffer.shape
        o, after = self.empty(H * V), self.empty(H, K, V)
        sizes = {"B": B, "H": H, "K": K, "V": V, "factors": factors, "key_heads": q.heads}
        sizes["gate_channels"] = 1 if gate is None else gate.features // H
        inputs = {"q": q, "k": k, "v": v, "beta": beta, "gate": gate, "before": state}
        scale = K**-0.5 if scale is None else scale
        self._add("recurrence_step", **inputs, state=after, o=o, **sizes, scale=scale)
        return o, after

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
    ) -> tuple[Value, Value]:
        _, channels, size = state.buffer.shape
        y, after = self.empty(channels), self.empty(channels, size)
        inputs = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "skip": D, "z": z}
        states = {"before": state, "state": after}
        sizes = {"rows": self.batch, "D": channels, "N": size, "negative": signed}
        self._add("selective_scan_step", **inputs, **states, y=y, **sizes, log_rates=True)
        return y, after

    def mlstm(
        self, q: Value, k: Value, v: Value, gates: Value, state: Value, m: Value, *, signed: bool
    ) -> tuple[tuple[Value, Value], Value, Value]:
        heads, size = m.features, k.features // m.features
        inputs = {"gates": gates, "k": k, "v": v, "m": m}
        written, v_one = self.empty(heads * size), self.empty(heads * (size + 1))
        gate, floor, after = (self.empty(heads) for _ in range(3))
        outputs = {"k_written": written, "v_one": v_one, "gate": gate, "floor": floor}
        outputs["m_next"] = after
        sizes = {"rows": self.batch, "heads": heads, "size": size, "negative": signed}
        self._add("mlstm_write", **inputs, **outputs, **sizes, least_floor=LEAST_NORMALISER)
        o, S = self.recurrence(q, written, v_one, None, gate, state)
        return (o, floor), S, after

    def mlstm_output(
        self, h: tuple[Value, Value], norm: HeadNorm, skip: Tensor, c: Value, z: Value
    ) -> Value:
        weight, _ = _own(norm, HeadNorm)
        o, floor = h
        heads, y = floor.features, self.empty(c.features)
        inputs = {"o": o, "floor": floor, "weight": weight, "skip": skip, "c": c, "z": z}
        sizes = {"rows": self.batch, "heads": heads, "size": c.features // heads}
        self._add("mlstm_read", **inputs, y=y, **sizes, eps=norm.eps)
        return y


def _own(module: nn.Module, kind: type[nn.Module]) -> tuple[Any, Any]:
    """Return the weight and bias of a module of exactly this class, None if it has none.

    Raise for subclasses, replaced methods and weights that are computed: they may do anything.
    """
    if type(module) is not kind or "forward" in vars(module):
        raise NotRecordableError(f"a {type(module).__name__} in place of a {kind.__name__}")
    own = dict(module.named_parameters(recurse=False))
    for name in ("weight", "bias"):
        if getattr(module, name, None) is not own.get(name):
            raise NotRecordableError(f"the {name} of a {kind.__name__} is not a parameter")
    return own.get("weight"), own.get("bias")
