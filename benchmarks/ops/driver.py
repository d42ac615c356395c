"""`python -m benchmarks ops`: plan the measurements, run them, report."""

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
from statetrack.config import at_least, one_of
from statetrack.files import check_output
from statetrack.terminal import check_json, make_console, write_result


def main(
    *,
    rows: tuple[str, ...] = (),
    threads: int = 1,
    rounds: int = 10,
    out: Path | None = None,
    json: str | None = None,
) -> None:
    """Measure our recurrences against those of other packages, each at its best chunk size.

    Every candidate is checked before it is timed. The other packages come from environments of
    their own, which `make peers` builds; without them ours are measured alone.

    Args:
        rows: what to measure; everything if absent.
        threads: how many each process uses.
        rounds: the least time over so many rounds counts; the candidates take turns.
        out: a folder for bench-cpu.md, .json and .png.
    """
    check_json(json)
    at_least("threads", threads, 1)
    at_least("rounds", rounds, 1)
    console = make_console(json)
    missing = missing_peers()
    jobs = plan(rows, missing)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        check_output(out / "bench-cpu.md")
    say_missing(missing, console)
    for job in jobs:
        job |= {"threads": threads, "rounds": rounds}
    results = measured("benchmarks.ops.worker", jobs, _label, console)
    command = "python -m benchmarks ops" + (f" --rows {' '.join(rows)}" if rows else "")
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
    write_result(json, summary)


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
