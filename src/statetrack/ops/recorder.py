"""A decoding step as a program: kernels and their arguments, recorded once and run by one call.

A layer's step is a dozen small kernels; to call each from Python takes longer than their work. A
layer records them in the order of its formulas:

    p = Program(batch)  # ops/program.py
    y = p.linear(p.linear(x, W1), W2)

where x and y stand for what comes in and goes out. `run` then puts in the addresses of the tensors
of a step. Everything is float32 on the CPU, and nothing is differentiated.

A program reads the weights where they lie, so it sees changes in place, and keeps them alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from statetrack.kernels import library
from statetrack.kernels.interface import KERNELS, STRUCTURES


class NotRecordableError(Exception):
    """A step that no program can be made of."""


class Recorder:
    """Kernels for a batch of so many rows, on buffers of its own."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.threads = torch.get_num_threads()
        self.read: list[Tensor] = []  # what it reads and did not make: keeps it alive
        self._kernels: list[int] = []
        self._arguments: list[ctypes.Structure] = []
        self._tables: list[object] = []  # what arguments point to, beside tensors
        self._made: dict[int, Tensor] = {}  # by address
        self._places: dict[int, list[tuple[ctypes.Structure, str]]] = {}  # of each address

    def empty(self, *shape: int) -> Tensor:
        """A buffer [batch, *shape], or what stands for a tensor that comes in."""
        return self.made(torch.empty(self.batch, *shape, dtype=torch.float32, device="cpu"))

    def made(self, x: Tensor) -> Tensor:
        """Keep a tensor for the program."""
        self._made[x.data_ptr()] = x
        return x

    def finish(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Say which of the tensors stand for what comes in and goes out of each run."""
        self._inputs = [self._places.get(x.data_ptr(), []) for x in inputs]
        same = {id(x): i for i, x in enumerate(inputs)}
        # an output that is an input comes out as it went in
        self._outputs = [
            (tuple(y.shape), self._places.get(y.data_ptr(), []), same.get(id(y))) for y in outputs
        ]
        for shape, places, at in self._outputs:
            assert places or at is not None or 0 in shape, "an output that no kernel writes"
        for x in (*inputs, *outputs):  # each run has its own
            self._made.pop(x.data_ptr(), None)
        pairs = zip(self._kernels, self._arguments, strict=True)
        calls = [STRUCTURES["Call"](kernel, ctypes.addressof(x)) for kernel, x in pairs]
        self._calls = (STRUCTURES["Call"] * len(calls))(*calls)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, new tensors, for inputs in the shapes of those that were recorded."""
        outputs = []
        for x, places in zip(inputs, self._inputs, strict=True):
            address = library.pointer(x)
            for arguments, field in places:
                setattr(arguments, field, address)
        for shape, places, same in self._outputs:
            if same is not None:
                outputs.append(inputs[same])
                continue
            y = torch.empty(shape, dtype=torch.float32, device="cpu")
            address = y.data_ptr()
            for arguments, field in places:
                setattr(arguments, field, address)
            outputs.append(y)
        library.call_all(self._calls)
        return outputs

    def add(self, kernel: str, **values: object) -> None:
        """Record a kernel; a tensor is given by its address."""
        arguments = STRUCTURES[KERNELS[kernel]]()
        for field, value in values.items():
            if isinstance(value, Tensor):
                value = self._address(arguments, field, value)
            if value is not None:
                setattr(arguments, field, value)
        if hasattr(arguments, "threads"):
            arguments.threads = self.threads
        self._kernels.append(library.address(kernel, arguments))
        self._arguments.append(arguments)

    def _address(self, arguments: ctypes.Structure, field: str, x: Tensor) -> int | None:
        rows = x.dim() == 2 and x.stride(1) == 1  # of a weight these may be columns of a larger
        if not (x.is_cpu and x.dtype is torch.float32 and (rows or x.is_contiguous())):
            raise NotRecordableError(f"{field} is not float32 on the CPU, row after row")
        address = library.pointer(x)
        if address is None:  # it has no elements
            return None
        if address not in self._made:
            self.read.append(x.detach())
        self._places.setdefault(address, []).append((arguments, field))
        return address
