"""Run the self-test and describe the machine."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from statetrack.kernels import gpu, library
from statetrack.selftest.layers import check_layers, layer_tests
from statetrack.selftest.op_tests import op_tests
from statetrack.selftest.ops import check_ops
from statetrack.selftest.outcome import Outcome
from statetrack.selftest.speed import sizes, time_layers, time_ops
from statetrack.selftest.timing import Timing

SCHEMA = 1  # of the file
PACKAGES = (
    *("statetrack", "torch", "triton", "flash-linear-attention", "fla-core", "mamba-ssm"),
    *("causal-conv1d", "numpy"),
)
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class SelfTest:
    """All that a self-test found."""

    device: dict[str, Any]
    outcomes: tuple[Outcome, ...]
    timings: tuple[Timing, ...]
    warnings: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many ops and layers passed, failed, or could not be run."""
        found = [outcome.status for outcome in self.outcomes]
        return {status: found.count(status) for status in ("passed", "failed", "unsupported")}

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "schema": SCHEMA,
            "versions": _versions(),
            "device": self.device,
            **self.counts,
            "checks": [outcome.as_json() for outcome in self.outcomes],
            "timings": [timing.as_json() for timing in self.timings],
            "warnings": list(self.warnings),
        }


def run_selftest(
    device: torch.device,
    *,
    quick: bool = False,
    timings: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> SelfTest:
    """Check every op, layer and range on a device against float64 on the CPU, and time them.

    Args:
        device: where ops and layers run.
        quick: fewer and smaller sizes.
        timings: whether speed is measured.
        say: is told what has just been done.

    Returns:
        The outcomes and timings. What fails is among them: no error is raised for it.
    """
    outcomes: list[Outcome] = []
    timed: list[Timing] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for outcome in check_ops(device, op_tests(quick), DTYPES):
            outcomes.append(outcome)
            say(f"checked {outcome.title}")
        for outcome in check_layers(device, layer_tests(quick), quick):
            outcomes.append(outcome)
            say(f"checked {outcome.title}")
        for size in sizes(device, quick) if timings else []:
            for measure in (time_ops, time_layers):
                for timing in measure(device, size):
                    timed.append(timing)
                    say(f"timed {timing.work}: {timing.implementation}")
    said = dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught)
    return SelfTest(_describe(device), tuple(outcomes), tuple(timed), tuple(said))


def _describe(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device": str(device),
        "name": platform.processor() or platform.machine(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "native kernels": library.WHY_MISSING or library.level(),
        "missing": {name: gpu.missing(name) for name in gpu.BACKENDS if gpu.missing(name)},
        "interpreter": gpu.interpreting(),
        "float32 products": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "name": properties.name,
            "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "architecture": getattr(properties, "gcnArchName", None),
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
        }
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
