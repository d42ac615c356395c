"""Runs every measurement in a child process, in the environment of its peers, and reports."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import statetrack
from benchmarks.ops import report
from benchmarks.ops.extras import EXTRA_ENVIRONMENTS, EXTRAS
from benchmarks.ops.rows import ROWS
from statetrack.config import one_of
from statetrack.errors import UserError

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {"fla": ROOT / ".venv-peers-fla", "hf": ROOT / ".venv-peers-hf"}
PEERS = {"fla": "flash-linear-attention", "hf": "transformers and mambapy"}
# the second needs glibc
ALLOCATORS = ("plain", "tuned") if platform.libc_ver()[0] == "glibc" else ("plain",)


def bench(
    rows: Sequence[str], threads: int, rounds: int, out: Path | None, console: Console
) -> dict[str, Any]:
    """Measure, print and write; the result as plain values for JSON."""
    # the marker that `make peers` leaves when an environment is complete
    missing = [name for name, path in ENVIRONMENTS.items() if not (path / "installed").exists()]
    jobs = plan(rows, missing)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    if missing:
        console.print(missing_peers(missing), markup=False)
    results = []
    with console.status("measuring") as status:
        for number, job in enumerate(jobs, 1):
            job |= {"threads": threads, "rounds": rounds}
            where = job["environment"] or "no peers"
            label = f"{number}/{len(jobs)} {job['row']}, {where}, {job['allocator']} allocator"
            if not console.is_terminal:
                console.print(label, markup=False)
            for message in child(job):
                if "say" in message:
                    status.update(f"{label}: {message['say']}")
                else:
                    results.append(message["result"])
    command = "statetrack bench ops" + (f" --rows {' '.join(rows)}" if rows else "")
    command += f" --threads {threads} --rounds {rounds}" + (f" --out {out}" if out else "")
    summary: dict[str, Any] = {
        "command": command,
        "machine": machine(),
        "missing peers": [PEERS[name] for name in missing],
        "comparisons": report.comparisons(results, ROWS, missing),
        "findings": report.findings(results),
        "results": results,
    }
    report.print_report(console, summary)
    if out is not None:
        report.write_report(out, summary)
    return summary


def plan(rows: Sequence[str], missing: Sequence[str]) -> list[dict[str, Any]]:
    """What to measure where: a row wherever one of its peers is, or here if there is none."""
    known = [*ROWS, *EXTRAS]
    for name in rows:
        one_of("a row", name, known)
    jobs = []
    for name in (name for name in known if name in rows or not rows):
        homes = EXTRA_ENVIRONMENTS[name] if name in EXTRAS else ROWS[name].environments
        usable: list[str | None] = [home for home in homes if home not in missing]
        # what memory is used is measured with the allocator as it is
        allocators = ALLOCATORS if name != "lengths" else ALLOCATORS[:1]
        jobs += [
            {"row": name, "environment": home, "allocator": allocator}
            for home in usable or [None]
            for allocator in allocators
        ]
    return jobs


def python(environment: str | None) -> Path:
    """The interpreter of a peer environment, or this one."""
    if environment is None:
        return Path(sys.executable)
    return ENVIRONMENTS[environment] / "bin" / "python"


def missing_peers(missing: Sequence[str]) -> str:
    """What to say of environments that are not there."""
    names = " and ".join(PEERS[name] for name in missing)
    return f"Without {names}: run `make peers` to install them in environments of their own."


def child(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a job in its environment; yields what the worker writes."""
    # this very statetrack, with its native library, also where an older copy is installed
    paths = [str(ROOT), str(Path(statetrack.__file__).parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    env.pop("STATETRACK_TUNE_ALLOCATOR", None)  # the job says which allocator
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
        [str(python(job["environment"])), "-m", "benchmarks.ops.worker", json.dumps(job)],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                message = json.loads(line)
                if "error" in message:
                    raise UserError(f"{job['row']} is not timed: {message['error']}")
                yield message
        except BaseException:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["it said nothing"]
            raise UserError(
                f"the process that measures {job['row']} ended with {process.returncode}: {last[0]}"
            )


def machine() -> dict[str, Any]:
    """The processor, as far as it is known."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].split(":", 1)[1].strip() if lines else name
    return {"processor": name, "cores": os.cpu_count(), "platform": platform.platform()}
