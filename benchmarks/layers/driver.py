"""What to measure, where, and what to tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.layers import report
from benchmarks.layers.peers import PEERS as PEER_LAYERS
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
from statetrack.layers import MIXERS
from statetrack.terminal import PlainConsole


def bench(
    layers: Sequence[str], rounds: int, out: Path | None, console: PlainConsole
) -> dict[str, Any]:
    """Measure, print and write; the result as plain values for JSON."""
    for name in layers:
        one_of("a layer", name, list(MIXERS))
    chosen = [name for name in MIXERS if name in layers or not layers]
    wanted = {p.environment for p in PEER_LAYERS if p.layer in chosen and p.environment}
    missing = [name for name in missing_peers() if name in wanted]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        check_output(out / "bench-layers.md")
    say_missing(missing, console)
    jobs = [job(name, missing) | {"rounds": rounds} for name in chosen]
    results = measured("benchmarks.layers.worker", jobs, lambda job: job["layer"], console)
    command = "statetrack bench layers" + (f" --layers {' '.join(layers)}" if layers else "")
    command += f" --rounds {rounds}" + (f" --out {out}" if out else "")
    summary: dict[str, Any] = {
        "command": command,
        "machine": machine(),
        "missing peers": [PEERS[name] for name in missing],
        "rows": report.rows(results),
        "results": results,
    }
    report.print_report(console, summary)
    if out is not None:
        report.write_report(out, summary)
    return summary


def job(layer: str, missing: Sequence[str]) -> dict[str, Any]:
    """A layer, where its peers are, or here if there are none."""
    homes = [p.environment for p in PEER_LAYERS if p.layer == layer and p.environment]
    usable = [home for home in homes if home not in missing]
    return {
        "layer": layer,
        "environment": usable[0] if usable else None,
        "allocator": ALLOCATORS[-1],
        "threads": 1,
    }
