"""Kernels and their arguments, recorded once and then run by a single call.

A program reads weights at their addresses: it sees changes in place, and keeps the weights alive.
Everything is float32 on the CPU, and nothing is differentiated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from statetrack.kernels import library
from statetrack.kernels.interface import KERNELS, STRUCTURES

_Call = STRUCTURES["Call"]


class NotRecordableError(Exception):
    """A step cannot be recorded as a program."""


class Program:
    """A list of kernels with the addresses of what they read and write."""

    def __init__(self) -> None:
        self.threads = torch.get_num_threads()
        self._calls: list[ctypes.Structure] = []
        self._buffers: dict[int, Tensor] = {}  # by address
        self._kept: list[object] = []  # what else the calls point to: keeps it alive
        self._places: dict[int, list[tuple[ctypes.Structure, str]]] = {}  # of each address

    def buffer(self, x: Tensor) -> Tensor:
        """Keep x as a buffer of the program, or to stand for an input or output; return it."""
        self._buffers[x.data_ptr()] = x
        return x

    def add(self, kernel: str, **values: object) -> None:
        """Record a kernel with these arguments: numbers, tensors, arrays of structures or None.

        Raises:
            NotRecordableError: for a tensor that the kernels do not take.
        """
        arguments = STRUCTURES[KERNELS[kernel]]()
        for field, value in values.items():
            if isinstance(value, Tensor):
                value = self._address(arguments, field, value)
            elif isinstance(value, ctypes.Array):
                self._kept.append(value)
                value = ctypes.addressof(value)
            if value is not None:
                setattr(arguments, field, value)
        if hasattr(arguments, "threads"):
            arguments.threads = self.threads
        self._kept.append(arguments)
        self._calls.append(_Call(library.address(kernel, arguments), ctypes.addressof(arguments)))

    def _address(self, arguments: ctypes.Structure, field: str, x: Tensor) -> int | None:
        rows = x.dim() == 2 and x.stride(1) == 1  # columns of a larger weight are taken too
        if not (x.is_cpu and x.dtype is torch.float32 and (rows or x.is_contiguous())):
            raise NotRecordableError(f"{field} is not float32 on the CPU, row after row")
        address = library.pointer(x)
        if address is None:  # it has no elements
            return None
        if address not in self._buffers:
            self._kept.append(x.detach())
        self._places.setdefault(address, []).append((arguments, field))
        return address

    def finish(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Declare which buffers stand for the inputs and outputs of a run."""
        self._inputs = [self._places.get(x.data_ptr(), []) for x in inputs]
        index = {id(x): i for i, x in enumerate(inputs)}
        # an output that is an input is returned as it is
        self._outputs = [
            (tuple(y.shape), self._places.get(y.data_ptr(), []), index.get(id(y))) for y in outputs
        ]
        for shape, places, same in self._outputs:
            assert places or same is not None or 0 in shape, "an output that no kernel writes"
        for x in (*inputs, *outputs):  # each run has its own
            self._buffers.pop(x.data_ptr(), None)
        self._table = (_Call * len(self._calls))(*self._calls)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run the kernels on inputs in the recorded shapes; return the outputs, new tensors."""
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
        library.call_all(self._table)
        return outputs
