"""The versions and the hardware that a result records."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from statetrack import __version__
from statetrack.devices import device_title, use_device
from statetrack.errors import UserError
from statetrack.sweep.pool import cores

CHECKOUT = Path(__file__).parents[3]  # if this is one: an installed package has no .git there


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return versions and hardware; of a source checkout also the commit, if git is installed.

    Args:
        device: the name of the device that computes.
    """
    try:
        title = device_title(use_device(device))
    except UserError:  # of a job that failed because there is none
        title = f"{device} (not available)"
    return {**_machine(), "device": title}


@functools.cache  # the commit of the code that is loaded, also if another is checked out later
def _machine() -> dict[str, Any]:
    return {
        "statetrack": __version__,
        **_revision(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": cores(),
    }


def _revision() -> dict[str, str]:
    """Return the commit of a source checkout, with "-dirty" at the end if a file was changed."""
    if not (CHECKOUT / ".git").exists():
        return {}
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"revision": done.stdout.strip()}


def _cpu_name() -> str:
    """Return the name of the processor, on Linux from /proc/cpuinfo."""
    if os.path.exists("/proc/cpuinfo"):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
