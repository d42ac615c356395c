"""`statetrack selftest`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from statetrack.files import check_output, write_json
from statetrack.terminal import PlainConsole, make_console, print_table, write_result

if TYPE_CHECKING:
    from statetrack.selftest import SelfTest


def selftest(
    *,
    device: str = "auto",
    quick: bool = False,
    timings: bool = True,
    out: Path | None = None,
    json: str | None = None,
) -> int:
    """Check every op and layer on a device against float64 on the CPU, and measure their speed.

    Writes one file with all results, to attach to a report (docs/gpu.md). The exit code is 1 if a
    check fails.

    Args:
        quick: fewer and smaller sizes, for seconds instead of minutes.
        timings: measure speed, on cuda beside flash-linear-attention, mamba-ssm and torch.compile.
        out: the file; statetrack-selftest-DEVICE.json if absent.
    """
    from statetrack.devices import use_device
    from statetrack.selftest import run_selftest

    chosen = use_device(device)
    file = out or Path(f"statetrack-selftest-{chosen.type}.json")
    check_output(file)
    console = make_console(json)
    with console.status("checking") as status:
        found = run_selftest(chosen, quick=quick, timings=timings, say=status.update)
    write_json(file, found.as_json())
    _show(found, console)
    console.print(f"All results: {file}", soft_wrap=True)
    write_result(json, found.as_json())
    return 1 if found.counts["failed"] else 0


def _show(found: SelfTest, console: PlainConsole) -> None:
    from statetrack.selftest.outcome import COLUMNS
    from statetrack.selftest.timing import TIMING_COLUMNS

    device = f"{found.device['name']} ({found.device['device']})"
    for kind, title in (("op", "Ops"), ("layer", "Layers")):
        own = [o for o in found.outcomes if o.kind == kind and o.status != "unsupported"]
        rows = [outcome.row() for outcome in own]
        print_table(console, f"{title} on {device}, against float64 on the CPU", COLUMNS, rows)
    if found.timings:
        rows = [timing.row() for timing in found.timings]
        print_table(console, f"Forward and backward on {device}", TIMING_COLUMNS, rows)
    for line in _notes(found):
        console.print(line, soft_wrap=True)
    counts = {"passed": "passed", "failed": "failed", "unsupported": "could not be run here"}
    console.print(", ".join(f"{found.counts[name]:,} {words}" for name, words in counts.items()))


def _notes(found: SelfTest) -> list[str]:
    """List the checks and timings that could not be run, then the failed checks, with reasons."""
    unable: dict[str, list[str]] = {}
    for outcome in found.outcomes:
        if outcome.status == "unsupported":
            for result in outcome.results:  # "OP cannot use its backend NAME: REASON"
                what = f"{outcome.backend}: not run: {result.detail.partition(': ')[2]}"
                unable.setdefault(what, []).append(outcome.subject)
    lines = [
        f"{what} ({ops[0]}" + (f" and {len(set(ops)) - 1} more)" if len(set(ops)) > 1 else ")")
        for what, ops in unable.items()
    ]
    lines += [
        f"{t.implementation}, {t.work}: not timed: {t.detail}" for t in found.timings if t.detail
    ]
    failed = [o for o in found.outcomes if o.status == "failed"]
    return lines + [f"{o.title}: {r}" for o in failed for r in o.results if r.status == "failed"]
