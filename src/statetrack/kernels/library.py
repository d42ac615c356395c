"""The native library: C++ kernels for CPUs, called through ctypes.

It is optional: if it was not built, `WHY_MISSING` says so and the ops use their torch backend. It
takes the best instruction set of the CPU. STATETRACK_NATIVE=baseline, avx2 or avx512 forces one,
and STATETRACK_NATIVE=off does without the library.
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
from statetrack.kernels.interface import HASH, KERNELS, STRUCTURES
from statetrack.kernels.transforms import transformed

PATH = Path(__file__).parent.parent / "_native.so"
SWITCH = "STATETRACK_NATIVE"
_STALE = f"{PATH.name} is not of this version of statetrack: install it again"


def load(path: Path, wanted: str) -> tuple[ctypes.CDLL | None, str | None]:
    """Load a library whose interface is that of `interface.h`.

    Returns:
        The library, or None and why there is none.
    """
    if wanted == "off":
        return None, f"switched off by {SWITCH}=off"
    if not path.exists():
        compilers = "a C++ compiler (g++, or clang++ with OpenMP)"
        return None, f"not built: install {compilers}, then statetrack again"
    try:
        # torch, imported above, has loaded its OpenMP runtime: the library shares it
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"does not load ({error}): install statetrack again on this machine"
    text, number = ctypes.c_char_p, ctypes.c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "interface": (text, []),
        "level": (text, [number]),
        "use": (number, [text]),
        "run": (number, [ctypes.c_void_p, number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, f"statetrack_{name}", None)
        if function is None:
            return None, _STALE
        function.restype, function.argtypes = result, arguments
    if lib.statetrack_interface() != HASH.encode():
        return None, _STALE
    return lib, None


def _levels() -> list[str]:
    names: list[str] = []
    while LIBRARY and (name := LIBRARY.statetrack_level(len(names))) is not None:
        names.append(name.decode())
    return [name for name in names if name]


LIBRARY, WHY_MISSING = load(PATH, os.environ.get(SWITCH, ""))
LEVELS = _levels()
"""The instruction sets that this CPU and the library both have, best first."""


def _choose() -> str | None:
    wanted = os.environ.get(SWITCH) or (LEVELS[0] if LEVELS else "")
    return wanted if LIBRARY and LIBRARY.statetrack_use(wanted.encode()) else None


_level = _choose()


def level() -> str | None:
    """The instruction set in use, None without a library.

    Raises:
        UserError: if the library is of another version, or STATETRACK_NATIVE names a level that
            does not exist here.
    """
    wanted = os.environ.get(SWITCH)
    if WHY_MISSING == _STALE:
        raise UserError(f"{_STALE}, or set {SWITCH}=off")
    if _level is None and wanted and wanted != "off":
        allowed = ", ".join([*LEVELS, "off"])
        reason = f"; the library is {WHY_MISSING}" if WHY_MISSING else ""
        raise UserError(f"{SWITCH} is {wanted!r}; here it can be: {allowed}{reason}")
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
    """Whether the native kernels exist and take these tensors: on the CPU and not float64.

    Under `torch.func` transforms and forward-mode differentiation they take none.
    """
    if _level is None:
        level()  # raises if the environment asks for what is not there
    if WHY_MISSING is not None or transformed():
        return False
    for x in tensors:  # not all(): single steps are short, and a loop takes half the time
        if x is not None and not (x.is_cpu and x.dtype is not torch.float64):
            return False
    return True


def viewable(x: Tensor) -> Tensor:
    """[B, T, H] or [B, T, H, K] as float32, one stride leading through the tokens of all rows.

    Slices of a fused projection are taken as they are; anything else is copied.
    """
    x = x.float()
    rows, length = x.shape[0], x.shape[1]
    one_stride = rows == 1 or length == 1 or x.stride(0) == length * x.stride(1)
    dense = x.dim() == 3 or x.shape[3] == 1 or x.stride(3) == 1
    return x if one_stride and dense else x.contiguous()


_View = STRUCTURES["View"]


def view(x: Tensor | None) -> ctypes.Structure:
    """The `View` of a tensor that `viewable` has returned."""
    if x is None:
        return _View(None, 0, 0)
    return _View(pointer(x), x.stride(1 if x.shape[1] > 1 else 0), x.stride(2))


def pointer(x: Tensor | None) -> int | None:
    """The address of a tensor's data, None if it has no elements."""
    address = 0 if x is None else x.data_ptr()
    if not address and x is not None and x.numel():
        raise UserError(f"a tensor of shape {list(x.shape)} has no memory: its storage was freed")
    return address or None


_functions: dict[str, Callable[..., int]] = {}


def call(kernel: str, arguments: ctypes.Structure) -> None:
    """Run a kernel.

    Raises:
        MemoryError: if its working memory cannot be allocated. What it was to write is undefined.
    """
    run = _functions.get(kernel)
    if run is None:
        run = _functions[kernel] = _function(kernel, arguments)
    if run(ctypes.byref(arguments)):
        raise MemoryError(f"no memory for the native kernel {kernel}")


def call_all(calls: ctypes.Array[Any]) -> None:
    """Run several kernels in a row; see `address`.

    Raises:
        MemoryError: as of `call`.
    """
    assert LIBRARY is not None
    if LIBRARY.statetrack_run(calls, len(calls)):
        raise MemoryError("no memory for the native kernels")


def address(kernel: str, arguments: ctypes.Structure) -> int:
    """The address of a kernel, for `call_all`."""
    found = ctypes.cast(_function(kernel, arguments), ctypes.c_void_p).value
    assert found is not None
    return found


def _function(kernel: str, arguments: ctypes.Structure) -> Any:
    assert LIBRARY is not None, WHY_MISSING
    if type(arguments) is not STRUCTURES[KERNELS[kernel]]:
        raise TypeError(f"{kernel} takes {KERNELS[kernel]}, not {type(arguments).__name__}")
    function = getattr(LIBRARY, f"statetrack_{kernel}")
    function.restype = ctypes.c_int64
    return function
