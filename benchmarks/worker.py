"""Serve one measurement: the job is the argument, the answers are lines of JSON.

The lines on standard output are {"say": ...} for progress and, at the end, {"result": ...} or
{"error": ...}.
"""

from __future__ import annotations

import json
import platform
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from benchmarks.timing import Progress, WrongResultError
from statetrack.allocator import tune_allocator
from statetrack.kernels import library

PACKAGES = ("torch", "numpy", "fla-core", "triton", "transformers", "mambapy", "xlstm")
Job = dict[str, Any]


def serve(measure: Callable[[Job, Progress], dict[str, Any]]) -> None:
    """Run the job in the argument, with the allocator and the threads that it names."""
    job = json.loads(sys.argv[1])
    if job["allocator"] == "tuned" and not tune_allocator():
        raise RuntimeError("the allocator cannot be tuned: the C library is not glibc")
    warnings.simplefilter("ignore")  # the other packages', about missing GPUs
    torch.set_num_threads(job["threads"])
    try:
        found = measure(job, lambda text: _write({"say": text}))
    except WrongResultError as error:
        _write({"error": str(error)})
        return
    level = library.WHY_MISSING or library.level()
    _write({"result": {**job, "versions": _versions(), "native": level, **found}})


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
