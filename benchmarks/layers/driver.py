"""`python -m benchmarks layers`: plan the measurements, run them, report."""

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
from statetrack.config import at_least, one_of
from statetrack.files import check_output
from statetrack.layers import MIXERS
from statetrack.terminal import check_json, make_console, write_result


def main(
    *,
    layers: tuple[str, ...] = (),
    rounds: int = 5,
    out: Path | None = None,
    json: str | None = None,
) -> None:
    """Measure a training step and the decoding of every layer, in both ranges, beside others.

    At the sizes of the paper's models, in one thread. Every candidate is checked before it is
    timed. The other packages come from an environment of their own, which `make peers` builds;
    without it ours are measured alone.

    Args:
        layers: some of the names that `statetrack models` lists; all if absent.
        rounds: the least time over so many rounds counts; the candidates take turns.
        out: a folder for bench-layers.md and .json.
    """
    check_json(json)
    at_least("rounds", rounds, 1)
    console = make_console(json)
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
    command = "python -m benchmarks layers" + (f" --layers {' '.join(layers)}" if layers else "")
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
    write_result(json, summary)


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
