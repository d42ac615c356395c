"""The native library: C++ kernels for CPUs, loaded through ctypes.

It is optional: without a compiler at installation there is none, `WHY_MISSING` says so, and the ops
use their torch backend. The library takes the best instruction set of the CPU when it is loaded;
STATETRACK_NATIVE=baseline, avx2 or avx512 forces one, and STATETRACK_NATIVE=off does without.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.transforms import transformed

PATH = Path(__file__).parent.parent / "_native.so"
VARIABLE = "STATETRACK_NATIVE"


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or why there is none and what to do about it."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "off":
        return None, f"switched off by {VARIABLE}=off"
    if not PATH.exists():
        compilers = "a C++ compiler (g++, or clang++ with OpenMP)"
        return None, f"not built: install {compilers}, then statetrack again"
    try:
        # torch, imported above, has loaded its OpenMP runtime: the library shares it
        lib = ctypes.CDLL(str(PATH))
    except OSError as error:
        return None, f"does not load ({error}): install statetrack again on this machine"
    lib.statetrack_level.restype = ctypes.c_char_p
    lib.statetrack_level.argtypes = [ctypes.c_int64]
    if not hasattr(lib, "statetrack_run"):
        return None, "not of this version of statetrack: install it again"
    lib.statetrack_run.restype = None
    lib.statetrack_run.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    lib.statetrack_size.restype = ctypes.c_int64
    lib.statetrack_size.argtypes = [ctypes.c_char_p]
    lib.statetrack_use.restype = ctypes.c_int64
    lib.statetrack_use.argtypes = [ctypes.c_char_p]
    return lib, None


def _levels() -> list[str]:
    names: list[str] = []
    while LIBRARY and (name := LIBRARY.statetrack_level(len(names))) is not None:
        names.append(name.decode())
    return [name for name in names if name]


LIBRARY, WHY_MISSING = _load()
LEVELS = _levels()
"""The instruction sets that this CPU and the library both have, best first."""


def _choose() -> str | None:
    wanted = os.environ.get(VARIABLE) or (LEVELS[0] if LEVELS else "")
    return wanted if LIBRARY and LIBRARY.statetrack_use(wanted.encode()) else None


_level = _choose()


def level() -> str | None:
    """The instruction set in use, None without a library."""
    wanted = os.environ.get(VARIABLE)
    if _level is None and wanted and wanted != "off":
        allowed = ", ".join([*LEVELS, "off"])
        reason = f"; the library is {WHY_MISSING}" if WHY_MISSING else ""
        raise UserError(f"{VARIABLE} is {wanted!r}; here it can be: {allowed}{reason}")
    return _level


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Use one instruction set for a while, in the whole process."""
    global _level
    before = level()
    if LIBRARY is None or before is None or not LIBRARY.statetrack_use(name.encode()):
        there = WHY_MISSING or f"there are: {', '.join(LEVELS)}"
        raise UserError(f"no native kernels for {name!r} here; {there}")
    _level = name
    try:
        yield
    finally:
        _level = before
        LIBRARY.statetrack_use(before.encode())


def serves(*tensors: Tensor | None) -> bool:
    """Whether the native kernels are there and serve these: on the CPU, not float64, reverse mode.

    Under `torch.func` transforms and forward-mode differentiation they serve nothing.
    """
    if _level is None:
        level()  # complains if the environment asks for what is not there
    if WHY_MISSING is not None or transformed():
        return False
    for x in tensors:  # not all(): single steps are short, and a loop takes half the time
        if x is not None and not (x.is_cpu and x.dtype is not torch.float64):
            return False
    return True


class View(ctypes.Structure):
    """Rows of float32: element i of token t and head h is data[t * token + h * head + i]."""

    _fields_ = [("data", ctypes.c_void_p), ("token", ctypes.c_int64), ("head", ctypes.c_int64)]

    @classmethod
    def of(cls, x: Tensor | None) -> View:
        """View a tensor that `viewable` has returned."""
        if x is None:
            return cls(None, 0, 0)
        return cls(pointer(x), x.stride(1 if x.shape[1] > 1 else 0), x.stride(2))


def viewable(x: Tensor) -> Tensor:
    """[B, T, H] or [B, T, H, K] as float32, one stride leading through the tokens of all rows.

    Slices of a fused projection are taken as they are; anything else is copied.
    """
    x = x.float()
    rows, length = x.shape[0], x.shape[1]
    one_stride = rows == 1 or length == 1 or x.stride(0) == length * x.stride(1)
    dense = x.dim() == 3 or x.shape[3] == 1 or x.stride(3) == 1
    return x if one_stride and dense else x.contiguous()


def pointer(x: Tensor | None) -> int | None:
    """The address of a tensor's data, None if it has no elements."""
    address = 0 if x is None else x.data_ptr()
    if not address and x is not None and x.numel():
        raise UserError(f"a tensor of shape {list(x.shape)} has no memory: its storage was freed")
    return address or None


_kernels: dict[str, Callable[..., None]] = {}


def call(name: str, arguments: ctypes.Structure) -> None:
    """Run a kernel."""
    kernel = _kernels.get(name)
    if kernel is None:
        kernel = _kernels[name] = _kernel(name, arguments)
    kernel(ctypes.byref(arguments))


def address(name: str, arguments: ctypes.Structure) -> int:
    """Where the kernel is, for those that run several in a row."""
    address = ctypes.cast(_kernel(name, arguments), ctypes.c_void_p).value
    assert address is not None
    return address


def _kernel(name: str, arguments: ctypes.Structure) -> Any:
    """A kernel that takes what we give it."""
    check_size(name, ctypes.sizeof(arguments))
    return getattr(LIBRARY, f"statetrack_{name}")


def check_size(what: str, size: int) -> None:
    """Check a size that the library must agree on: it may be older than these files."""
    assert LIBRARY is not None, WHY_MISSING
    if LIBRARY.statetrack_size(what.encode()) != size:
        raise UserError(f"{PATH.name} is not of this version of statetrack: install it again")
