"""`statetrack info`."""

from __future__ import annotations

import platform

from statetrack.terminal import make_console, print_table, write_result


def info(*, json: str | None = None) -> None:
    """Show the versions, cores and backends of this installation."""
    import torch

    from statetrack import __version__
    from statetrack.devices import available_devices
    from statetrack.kernels import library
    from statetrack.ops.backends import BACKENDS
    from statetrack.sweep.pool import cores

    missing = library.WHY_MISSING
    facts = {
        "statetrack": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": cores(),
        "devices": ", ".join(available_devices()),
        "torch threads": torch.get_num_threads(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "op backends": ", ".join(BACKENDS),
        "native kernels": library.WHY_MISSING
        or f"{library.level()} (of {', '.join(library.LEVELS)})",
        "default backend": "torch" if missing else "native on the CPU, torch elsewhere",
    }
    rows = [[name, str(value)] for name, value in facts.items()]
    print_table(make_console(json), "statetrack", ["what", "value"], rows)
    write_result(json, facts)
