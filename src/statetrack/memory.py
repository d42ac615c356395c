"""Check whether work fits into this machine's memory before it starts."""

from __future__ import annotations

import os
from pathlib import Path

from statetrack.errors import UserError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def machine_memory() -> int | None:
    """Return the bytes that this process may use at most; None if the system does not tell."""
    known = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if resource is not None and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) >= 0:
        known.append(limit)
    for file in map(Path, CGROUPS):  # of a container
        if file.is_file() and (text := file.read_text().strip()).isdecimal():
            known.append(int(text))
    return min(known, default=None)


def check_memory(needed: int, what: str) -> None:
    """Raise a UserError if `what` needs more bytes than this machine has."""
    available = machine_memory()
    if available is not None and needed > available:
        raise UserError(
            f"{what} needs {bytes_text(needed)}; this machine has {bytes_text(available)}"
        )


def bytes_text(count: int) -> str:
    """Format a number of bytes with a unit."""
    power = min((len(str(count)) - 1) // 3, len(UNITS) - 1)
    return f"{count / 1000**power:.3g} {UNITS[power]}"
