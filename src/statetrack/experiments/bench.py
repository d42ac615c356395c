"""Benchmarks of our own parts; what they measured goes to results/."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from statetrack.tasks import FAMILIES, generator, make_task

BATCH, LENGTH = 1024, 256


def bench_tasks(rounds: int = 5) -> list[dict[str, Any]]:
    """The time to draw and solve a batch of 1,024 sequences of length 256, for every task.

    One core (numpy does not use more here); the least over rounds, since the machine is noisy.
    """
    rows = []
    for name in (example for family in FAMILIES for example in family.examples):
        task = make_task(name)
        lengths = np.full(BATCH, LENGTH)
        seconds = []
        for round_ in range(rounds + 1):  # the first one fills caches
            began = time.perf_counter()
            batch = task.sample(generator(0, "train", round_), lengths)
            seconds.append(time.perf_counter() - began)
        tokens = batch.tokens.size
        best = min(seconds[1:])
        rows.append({"task": name, "milliseconds": 1e3 * best, "tokens per second": tokens / best})
    return rows
