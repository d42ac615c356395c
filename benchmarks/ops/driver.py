"""What to measure, where, and what to tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ops import report
from benchmarks.ops.extras import EXTRA_ENVIRONMENTS, EXTRAS
from benchmarks.ops.rows import ROWS
from benchmarks.processes import (
    ALLOCATORS,
    PEERS,
    machine,
    measured,
    missing_peers,
    say_missing,
)
from statetrack.config import one_of
from statetrack.files import check_output
from statetrack.terminal import PlainConsole


def bench(
    rows: Sequence[str], threads: int, rounds: int, out: Path | None, console: PlainConsole
) -> dict[str, Any]:
    """Measure, print and write; the result as plain values for JSON."""
    missing = missing_peers()
    jobs = plan(rows, missing)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        check_output(out / "bench-cpu.md")
    say_missing(missing, console)
    for job in jobs:
        job |= {"threads": threads, "rounds": rounds}
    results = measured("benchmarks.ops.worker", jobs, _label, console)
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


def _label(job: dict[str, Any]) -> str:
    return f"{job['row']}, {job['environment'] or 'no peers'}, {job['allocator']} allocator"
