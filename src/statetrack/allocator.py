"""Let glibc's allocator keep the memory that large tensors free.

By default it maps every large buffer anew and returns it when it is freed, so that each new tensor
costs page faults: a quarter of the time of a backward pass. Memory that is kept is reused at once.
"""

from __future__ import annotations

import ctypes
import os

from statetrack.errors import UserError

VARIABLE = "STATETRACK_TUNE_ALLOCATOR"

# from malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Bytes, best first: before glibc 2.35 the mmap threshold could not be more than 32 MiB.
_THRESHOLDS = 2**31 - 1, 2**25


def tune_allocator() -> bool:
    """Keep freed memory in this process for the next tensors.

    Raises glibc's mmap and trim thresholds until the process ends: memory once used for tensors
    below 2 GiB (32 MiB before glibc 2.35) is kept. The commands call it when they start; a program
    that uses the library decides for itself. STATETRACK_TUNE_ALLOCATOR=0 turns it off.

    Returns:
        Whether it was possible: the C library must be glibc.
    """
    wanted = os.environ.get(VARIABLE, "1")
    if wanted not in ("0", "1"):
        raise UserError(f"{VARIABLE} must be 0 or 1; got {wanted!r}")
    if wanted == "0" or os.name != "posix":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    mapped = any(libc.mallopt(_M_MMAP_THRESHOLD, size) for size in _THRESHOLDS)
    return bool(libc.mallopt(_M_TRIM_THRESHOLD, _THRESHOLDS[0])) and mapped
