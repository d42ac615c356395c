"""`statetrack info`."""

from __future__ import annotations

import platform

from statetrack.terminal import make_console, print_table, write_result


def info(*, json: str | None = None) -> None:
    """Show the versions, cores and backends of this installation."""
    import torch

    from statetrack import __version__
    from statetrack.ops import native
    from statetrack.ops.backends import BACKENDS
    from statetrack.sweep.pool import cores

    facts = {
        "statetrack": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": cores(),
        "torch threads": torch.get_num_threads(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "op backends": ", ".join(BACKENDS),
        "native kernels": native.WHY_MISSING or f"{native.level()} (of {', '.join(native.LEVELS)})",
        "default backend": "torch" if native.WHY_MISSING else "native on the CPU, torch elsewhere",
    }
    rows = [[name, str(value)] for name, value in facts.items()]
    print_table(make_console(json), "statetrack", ["what", "value"], rows)
    write_result(json, facts)
