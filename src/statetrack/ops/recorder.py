"""A decoding step as a program: kernels and their arguments, recorded once and run by one call.

A layer's step is a dozen small kernels; to call each from Python takes longer than their work. A
layer records them in the order of its formulas:

    p = Program(batch)  # ops/program.py
    y = p.linear(p.linear(x, W1), W2)

where x and y stand for what comes in and goes out. `run` then puts in the addresses of the tensors
of a step. Everything is contiguous float32 on the CPU, and nothing is differentiated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from statetrack.ops import native


class _Call(ctypes.Structure):
    """As in csrc/api.cpp."""

    _fields_ = [("kernel", ctypes.c_void_p), ("arguments", ctypes.c_void_p)]


class Recorder:
    """Kernels for a batch of so many rows, on buffers of its own."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.threads = torch.get_num_threads()
        self._kernels: list[int] = []
        self._arguments: list[ctypes.Structure] = []
        self._alive: list[object] = []  # what the arguments point to
        self._places: dict[int, list[tuple[ctypes.Structure, str]]] = {}  # of each address

    def finish(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Say which of the tensors stand for what comes in and goes out of each run."""
        self._inputs = [self._places.get(x.data_ptr(), []) for x in inputs]
        same = {id(x): i for i, x in enumerate(inputs)}
        # an output that is an input comes out as it went in
        self._outputs = [(y, self._places.get(y.data_ptr(), []), same.get(id(y))) for y in outputs]
        pairs = zip(self._kernels, self._arguments, strict=True)
        calls = [_Call(kernel, ctypes.addressof(x)) for kernel, x in pairs]
        self._calls = (_Call * len(calls))(*calls)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, new tensors, for inputs in the shapes of those that were recorded."""
        outputs = []
        for x, places in zip(inputs, self._inputs, strict=True):
            address = x.data_ptr()
            for arguments, field in places:
                setattr(arguments, field, address)
        for like, places, same in self._outputs:
            if same is not None:
                outputs.append(inputs[same])
                continue
            y = torch.empty_like(like)
            address = y.data_ptr()
            for arguments, field in places:
                setattr(arguments, field, address)
            outputs.append(y)
        assert native.LIBRARY is not None
        native.LIBRARY.statetrack_run(self._calls, len(self._calls))
        return outputs

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(self.batch, *shape)

    def _add(self, kernel: str, structure: type, **values: object) -> None:
        """Record a kernel; a tensor is given by its address, and kept alive."""
        arguments = structure()
        for field, value in values.items():
            if isinstance(value, Tensor):
                value = value.detach()
                self._alive.append(value)
                address = value.data_ptr()
                if address:  # that of an empty tensor is 0
                    self._places.setdefault(address, []).append((arguments, field))
                value = address or None
            if value is not None:
                setattr(arguments, field, value)
        if hasattr(structure, "threads"):
            arguments.threads = self.threads
        self._kernels.append(native.address(kernel, arguments))
        self._arguments.append(arguments)
