"""Measure the time to draw and solve 1,024 sequences of length 256, for every task."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from statetrack.allocator import tune_allocator
from statetrack.config import at_least
from statetrack.files import check_output, write_atomic
from statetrack.tasks import FAMILIES, Task, generator, make_task
from statetrack.terminal import check_json, make_console, print_table, write_result

BATCH, LENGTH = 1024, 256

# beyond the examples of every family: tasks that cost more than the defaults
HARDER: dict[str, tuple[str, dict[str, Any]]] = {
    "S5 --tokens-per-element 5": ("S5", {"tokens_per_element": 5}),
    "random_dfa64_seed0": ("random_dfa64_seed0", {}),
    "regex:[a-z]*(ab)*[yz]": ("regex:[a-z]*(ab)*[yz]", {}),
}

# milliseconds: automata and groups; expressions with brackets; all others
REGULAR, BRACKETS, OTHERS = 20.0, 40.0, 100.0


def limit(task: Task) -> float:
    """Return the milliseconds within which a batch of a task should be drawn and solved."""
    if task.automaton() is not None or task.family == "word problem":
        return REGULAR
    return BRACKETS if "brackets" in task.name else OTHERS


def measure(rounds: int) -> list[dict[str, Any]]:
    """Time a batch of every task; the least over the rounds, since the machine is noisy."""
    rows = []
    examples: dict[str, tuple[str, dict[str, Any]]]
    examples = {name: (name, {}) for family in FAMILIES for name in family.examples}
    for label, (name, options) in {**examples, **HARDER}.items():
        task = make_task(name, **options)
        lengths = np.full(BATCH, LENGTH)
        seconds = []
        for round_ in range(rounds + 1):  # the first one fills caches
            began = time.perf_counter()
            batch = task.sample(generator(0, "train", round_), lengths)
            seconds.append(time.perf_counter() - began)
        best, most = 1e3 * min(seconds[1:]), limit(task)
        rows.append(
            {
                "task": label,
                "milliseconds": best,
                "limit": most,
                "met": best <= most,
                "tokens per second": 1e3 * batch.tokens.size / best,
            }
        )
    return rows


def main(*, rounds: int = 5, out: Path | None = None, json: str | None = None) -> None:
    """Measure the time to draw 1,024 sequences of length 256 on one core, and its limit.

    Args:
        rounds: the least time over so many rounds counts.
        out: a markdown file for the table.
    """
    tune_allocator()
    check_json(json)
    at_least("rounds", rounds, 1)
    if out is not None:
        check_output(out)
    console = make_console(json)
    with console.status("measuring"):
        rows = measure(rounds)
    columns = ["task", "ms", "limit", "met", "million tokens/s"]
    body = [
        [
            r["task"],
            f"{r['milliseconds']:.1f}",
            f"{r['limit']:g}",
            "yes" if r["met"] else "no",
            f"{r['tokens per second'] / 1e6:.1f}",
        ]
        for r in rows
    ]
    print_table(console, "1,024 sequences of length 256, drawn and solved", columns, body)
    if out is not None:
        command = f"`python -m benchmarks tasks --rounds {rounds} --out {out}`"
        lines = ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *body)]
        write_atomic(out, "\n".join([f"# Sampling, measured by {command}", "", *lines, ""]))
    write_result(json, {"tasks": rows})
