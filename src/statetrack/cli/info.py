"""`statetrack info`."""

from __future__ import annotations

import platform
from importlib import metadata

from statetrack.terminal import make_console, print_table, write_result


def info(*, json: str | None = None) -> None:
    """Show the versions, cores, GPUs and backends of this installation, and what it lacks."""
    import torch

    from statetrack import __version__
    from statetrack.devices import available_devices
    from statetrack.kernels import library
    from statetrack.ops.backends import BACKENDS
    from statetrack.sweep.pool import cores

    facts = {
        "statetrack": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": cores(),
        "devices": ", ".join(available_devices()),
        "torch threads": torch.get_num_threads(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": ", ".join(_gpus()) or "none",
        "op backends": ", ".join(BACKENDS),
        "native kernels": library.WHY_MISSING
        or f"{library.level()} (of {', '.join(library.LEVELS)})",
        "triton": _version("triton", "triton"),
        "flash-linear-attention": _version("fla", "flash-linear-attention"),
        "default backend": _default_backend(),
    }
    rows = [[name, str(value)] for name, value in facts.items()]
    print_table(make_console(json), "statetrack", ["what", "value"], rows)
    write_result(json, facts)


def _gpus() -> list[str]:
    """The GPUs that torch can use, by device, with their names and memory."""
    import torch

    found = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(i)
            kind = "ROCm" if torch.version.hip else "CUDA"
            memory = properties.total_memory / 2**30
            found.append(f"cuda:{i} ({properties.name}, {memory:.0f} GiB, {kind})")
    if torch.backends.mps.is_available():
        memory = torch.mps.recommended_max_memory() / 2**30
        found.append(f"mps (Apple, {memory:.0f} GiB)")
    return found


def _version(backend: str, distribution: str) -> str:
    """The version of the package that a backend stands on, or what is wrong with it."""
    from statetrack.kernels import gpu

    if command := gpu.missing(backend):
        return f"not installed: {command}"
    if reason := gpu.UNTESTED.get(distribution):
        return reason
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # of another name, as Triton's build for ROCm
        return "installed"


def _default_backend() -> str:
    """Say which backends `backend="auto"` prefers on each device."""
    from statetrack.kernels import gpu, library

    on_cpu = "torch" if library.WHY_MISSING else "native"
    on_gpu = [name for name in gpu.BACKENDS if not gpu.missing(name)]
    others = f"{', '.join(on_gpu)}, then torch" if on_gpu else "torch"
    return f"{on_cpu} on the CPU; {others} on GPUs"
