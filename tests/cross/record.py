"""Record calls of the native kernels for replay.cpp: memory before, pointers into it, memory after.

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
from statetrack.testing.inputs import delta_rule_inputs, selective_scan_inputs, slstm_inputs

SIZES: dict[int, int] = {}  # of the memory at an address, in bytes
data_ptr = Tensor.data_ptr


def tracked(x: Tensor) -> int:
    """An address, of which the size is noted."""
    address = data_ptr(x)
    SIZES[address] = x.untyped_storage().nbytes() - x.storage_offset() * x.element_size()
    return address


def pointers(x: ctypes.Structure, at: int = 0) -> list[tuple[int, int]]:
    """(offset in the structure, address) of its pointers, those of its parts included."""
    found = []
    for name, kind in x._fields_:
        value, offset = getattr(x, name), at + getattr(type(x), name).offset
        if issubclass(kind, ctypes.Structure):
            found += pointers(value, offset)
        elif kind is ctypes.c_void_p and value:
            found.append((offset, value))
    return found


def record(kernel: str, function: Any, arguments: ctypes.Structure, file: BinaryIO) -> int:
    """Run a kernel; write its arguments, and all that they point to, before and after."""
    blocks = [(ctypes.addressof(arguments), ctypes.sizeof(arguments))]
    links = [(0, *pair) for pair in pointers(arguments)]  # (block, offset, address)
    if getattr(arguments, "parts", None):  # of a convolution: structures with pointers of their own
        table = (STRUCTURES["Part"] * arguments.num_parts).from_address(arguments.parts)
        SIZES[arguments.parts] = ctypes.sizeof(table)
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
    file.write(struct.pack("32sqq", kernel.encode(), len(blocks), len(links)))
    for block, old in zip(blocks, before, strict=True):
        file.write(struct.pack("q", len(old)) + old + ctypes.string_at(*block))
    for index, offset, address in links:
        file.write(struct.pack("qqq", index, offset, known[address]))
    return int(failed)


def calls() -> None:
    """Run the kernels, forwards and backwards."""
    delta, scan, cells = (
        {name: x.float().requires_grad_() for name, x in inputs.items()}
        for inputs in (
            delta_rule_inputs(2, 37, 3, 17, 9),
            selective_scan_inputs(2, 70, 21, 5),
            slstm_inputs(2, 9, 2, 11),
        )
    )
    x, weight = torch.randn(5, 38, requires_grad=True), torch.randn(38, requires_grad=True)
    q, k, v = (delta[name] for name in "qkv")
    channels = torch.rand_like(q) * 2 - 1
    conv = torch.randn(2, 19, 38, requires_grad=True), torch.randn(38, 4, requires_grad=True)
    results = [
        *ops.delta_rule(**delta, output_final_state=True, backend="native"),
        ops.gated_linear_attention(q, k, v, decay=channels.requires_grad_(), backend="native")[0],
        *ops.selective_scan(**scan, output_final_state=True, backend="native"),
        ops.slstm(**cells, backend="native")[0],
        *ops.short_conv(*conv, silu=True, sizes=[20, 18], head_sizes=[10, 0], backend="native")[0],
        ops.rms_norm(x, weight, backend="native"),
        ops.swiglu(x, backend="native"),
        ops.cross_entropy(x, torch.tensor([3, 1, -100, 37, 0]), backend="native"),
    ]
    torch.autograd.backward([y.square().sum() for y in results])
    with torch.no_grad():
        tokens = [delta[name][:, 0] for name in ("q", "k", "v", "beta")]
        ops.delta_rule_step(torch.randn(2, 3, 17, 9), *tokens, backend="native")


def main() -> None:
    """Write the file; the level with four lanes, as the other machine has them."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    Tensor.data_ptr = tracked  # type: ignore[method-assign]
    with library.forced("baseline"), Path(sys.argv[1]).open("wb") as file:
        for kernel, name in KERNELS.items():
            function = library._function(kernel, STRUCTURES[name]())
            library._functions[kernel] = lambda reference, kernel=kernel, function=function: record(
                kernel, function, reference._obj, file
            )
        calls()


if __name__ == "__main__":
    main()
