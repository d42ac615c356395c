"""One measurement in a process of its own: python -m benchmarks.ops.worker JSON.

The argument says what to measure; lines of JSON on standard output say how it goes: {"say": ...},
and at the end {"result": ...} or {"error": ...}.
"""

from __future__ import annotations

import json
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("torch", "numpy", "fla-core", "triton", "transformers", "mambapy")


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Measure what `job` says."""
    from statetrack.allocator import tune_allocator

    if job["allocator"] == "tuned" and not tune_allocator():
        raise RuntimeError("the allocator cannot be tuned: the C library is not glibc")
    import torch

    from benchmarks.ops.extras import EXTRAS
    from benchmarks.ops.measure import measure
    from benchmarks.ops.rows import ROWS
    from statetrack.ops import native

    torch.set_num_threads(job["threads"])
    name, environment = job["row"], job["environment"]
    if name in EXTRAS:
        found = EXTRAS[name](environment, job["rounds"], _say)
    else:
        row = ROWS[name]
        candidates = [c for c in row.candidates if c.environment in (None, environment)]
        found = measure(row, candidates, job["rounds"], _say)
        found |= {"title": row.title, "flops": row.flops, "formula": row.formula}
    level = native.WHY_MISSING or native.level()
    return {**job, "versions": _versions(), "native": level, **found}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _say(text: str) -> None:
    _write({"say": text})


def _write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the job in the argument."""
    from benchmarks.ops.measure import WrongResultError

    warnings.simplefilter("ignore")  # the other packages', about missing GPUs
    try:
        _write({"result": run(json.loads(sys.argv[1]))})
    except WrongResultError as error:
        _write({"error": str(error)})


if __name__ == "__main__":
    main()
