"""Record calls of the kernels for replay.cpp: memory before and after, and the pointers into it.

python tests/cross/record.py FILE
"""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from statetrack import ops
from statetrack.kernels import library
from statetrack.kernels.interface import KERNELS, STRUCTURES

SIZES: dict[int, int] = {}  # of the memory at an address, in bytes
data_ptr = Tensor.data_ptr


def tracked(x: Tensor) -> int:
    """Return a tensor's address and note its size."""
    SIZES[data_ptr(x)] = x.untyped_storage().nbytes() - x.storage_offset() * x.element_size()
    return data_ptr(x)


def pointers(x: ctypes.Structure, at: int = 0) -> list[tuple[int, int]]:
    """(offset, address) of all pointers in a structure, nested ones included."""
    found = []
    for name, kind in x._fields_:
        value, offset = getattr(x, name), at + getattr(type(x), name).offset
        if issubclass(kind, ctypes.Structure):
            found += pointers(value, offset)
        elif kind is ctypes.c_void_p and value:
            found.append((offset, value))
    return found


def record(kernel: str, function: Any, arguments: ctypes.Structure, file: BinaryIO) -> int:
    """Run a kernel and write its arguments and all memory that they point to."""
    blocks = [(ctypes.addressof(arguments), ctypes.sizeof(arguments))]
    links = [(0, *pair) for pair in pointers(arguments)]  # (block, offset, address)
    if getattr(arguments, "parts", None):  # of a convolution: structures that hold pointers too
        table = (STRUCTURES["Part"] * arguments.num_parts).from_address(arguments.parts)
        blocks.append((arguments.parts, ctypes.sizeof(table)))
        size = ctypes.sizeof(STRUCTURES["Part"])
        links += [(1, *pair) for i, part in enumerate(table) for pair in pointers(part, i * size)]
    known = {address: i for i, (address, _) in enumerate(blocks)}
    for _, _, address in links:
        if address not in known:
            known[address] = len(blocks)
            blocks.append((address, SIZES[address]))
    before = [ctypes.string_at(*block) for block in blocks]
    failed = function(ctypes.byref(arguments))
    assert any(ctypes.string_at(*x) != old for x, old in zip(blocks, before, strict=True)), kernel
    file.write(struct.pack("32sqq", kernel.encode(), len(blocks), len(links)))
    for block, old in zip(blocks, before, strict=True):
        file.write(struct.pack("q", len(old)) + old + ctypes.string_at(*block))
    for index, offset, address in links:
        file.write(struct.pack("qqq", index, offset, known[address]))
    return int(failed)


def run_kernels() -> None:
    """Run most kernels, forwards and backwards, on random inputs of odd sizes."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape).requires_grad_()

    q, k, v = (
        normal(2, 37, 3, 17),
        (torch.randn(2, 37, 3, 17) / 5).requires_grad_(),
        normal(2, 37, 3, 9),
    )
    beta, gate = torch.rand(2, 37, 3).requires_grad_(), torch.rand(2, 37, 3).requires_grad_()
    scan = normal(2, 70, 21), torch.rand(2, 70, 21), -torch.rand(21, 5), normal(2, 70, 5)
    x, parts = normal(5, 38), {"sizes": [20, 18], "head_sizes": [10, 0]}
    results = [
        *ops.delta_rule(q, k, v, beta, decay=gate, output_final_state=True, backend="native"),
        ops.gated_linear_attention(q, k, v, decay=q.tanh(), backend="native")[0],
        ops.selective_scan(*scan, normal(2, 70, 5), normal(21), scan[0], backend="native")[0],
        ops.slstm(normal(2, 9, 2, 4, 11), normal(2, 4, 11, 11), backend="native")[0],
        *ops.short_conv(normal(2, 19, 38), normal(38, 4), silu=True, backend="native", **parts)[0],
        ops.rms_norm(x, normal(38), backend="native"),
        ops.swiglu(x, backend="native"),
        ops.softplus(x, backend="native"),
        ops.cross_entropy(x, torch.tensor([3, 1, -100, 37, 0]), backend="native"),
    ]
    torch.autograd.backward([y.square().sum() for y in results])
    with torch.no_grad():
        token = (t[:, 0] for t in (q, k, v, beta))
        ops.delta_rule_step(torch.randn(2, 3, 17, 9), *token, backend="native")


def main() -> None:
    """Record at the level with four lanes, which the other machine has too."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    Tensor.data_ptr = tracked  # type: ignore[method-assign]
    with library.forced("baseline"), Path(sys.argv[1]).open("wb") as file:
        for kernel, name in KERNELS.items():
            function = library._function(kernel, STRUCTURES[name]())
            library._functions[kernel] = lambda reference, kernel=kernel, function=function: record(
                kernel, function, reference._obj, file
            )
        run_kernels()


if __name__ == "__main__":
    main()
