"""The devices that models compute on: their names, which of them are there, where a module is."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from statetrack.errors import UserError, check_type

M = TypeVar("M", bound=nn.Module)

KINDS = ("cpu", "cuda", "mps")
"""Kinds of devices; cuda stands for GPUs of NVIDIA and, in builds of torch for ROCm, of AMD."""

_preferred_gpu: int | None = None


def check_device_name(name: str) -> None:
    """Raise a UserError unless a text names a device, whether or not this machine has it."""
    check_type("device", name, str, "a text")
    if name != "auto" and not re.fullmatch(rf"({'|'.join(KINDS)})(:[0-9]{{1,4}})?", name):
        raise UserError(f"device must be auto, {', '.join(KINDS)} or such as cuda:1; got {name!r}")


def available_devices() -> list[str]:
    """List the devices of this machine by name, the CPU first."""
    found = ["cpu", *(f"cuda:{i}" for i in range(count_gpus()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def count_gpus() -> int:
    """Return how many GPUs torch can use here: of NVIDIA, or of AMD in a build for ROCm."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def use_device(name: str = "auto") -> torch.device:
    """Return the device that a name stands for; a GPU becomes torch's current one.

    Args:
        name: "cpu", "cuda", "cuda:1", "mps", ...; "auto" is cuda if there is a GPU, else cpu. It
            is never mps, which has no float64 and lacks operations.

    Raises:
        UserError: This machine has no such device.

    >>> use_device("cpu")
    device(type='cpu')
    """
    check_device_name(name)
    if name == "auto":
        name = "cuda" if count_gpus() else "cpu"
    kind, _, index = name.partition(":")
    found = available_devices()
    same = [other for other in found if other.partition(":")[0] == kind]
    if not same or (index and int(index) >= len(same)):
        raise UserError(f"there is no device {name} here; there is: {', '.join(found)}")
    if kind != "cuda":
        return torch.device(kind)
    if index:
        device = torch.device(kind, int(index))
    elif _preferred_gpu is not None:
        device = torch.device(kind, _preferred_gpu % len(same))
    else:
        device = torch.device(kind, torch.cuda.current_device())
    torch.cuda.set_device(device)  # kernels of Triton run on the current GPU
    return device


def prefer_gpu(number: int) -> None:
    """Let "cuda" stand for this GPU in this process, modulo the number of GPUs."""
    global _preferred_gpu
    _preferred_gpu = number


def device_title(device: torch.device) -> str:
    """Return a device's name for reports; of a GPU also its model."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters and buffers; the CPU if it has none."""
    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            return tensor.device
    return torch.device("cpu")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; a GPU gets one of the CPU without making the CPU wait."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    # from memory that is not pinned the copy would wait for what the GPU does
    return tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def on_cpu() -> Iterator[None]:
    """A context, or decorator, that makes new tensors on the CPU, whatever torch's default is."""
    if torch.get_default_device().type == "cpu":
        yield  # torch's own context would make every call slower
        return
    with torch.device("cpu"):
        yield


def cpu_copy(module: M) -> M:
    """Return a module with its parameters and buffers on the CPU: itself if they are there."""
    return module if device_of(module).type == "cpu" else copy.deepcopy(module).cpu()
