"""Benchmarks of our own parts; what they measured goes to results/."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from statetrack.tasks import FAMILIES, Task, generator, make_task

BATCH, LENGTH = 1024, 256

# beyond the examples of every family: what costs more than the defaults do
HARDER: dict[str, tuple[str, dict[str, Any]]] = {
    "S5 --tokens-per-element 5": ("S5", {"tokens_per_element": 5}),
    "random_dfa64_seed0": ("random_dfa64_seed0", {}),
    "regex:[a-z]*(ab)*[yz]": ("regex:[a-z]*(ab)*[yz]", {}),
}

# milliseconds: what an automaton can do and groups, expressions with brackets, all else
REGULAR, BRACKETS, OTHERS = 20.0, 40.0, 100.0


def limit(task: Task) -> float:
    """The milliseconds within which a batch of a task should be drawn and solved."""
    if task.automaton() is not None or task.family == "word problem":
        return REGULAR
    return BRACKETS if "brackets" in task.name else OTHERS


def bench_tasks(rounds: int = 5) -> list[dict[str, Any]]:
    """The time to draw and solve a batch of 1,024 sequences of length 256, for every task.

    One core (numpy does not use more here); the least over rounds, since the machine is noisy.
    """
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
        tokens = batch.tokens.size
        best, most = 1e3 * min(seconds[1:]), limit(task)
        rows.append(
            {
                "task": label,
                "milliseconds": best,
                "limit": most,
                "met": best <= most,
                "tokens per second": 1e3 * tokens / best,
            }
        )
    return rows
