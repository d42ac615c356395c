"""Summarise the scores of a model's seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

CLAIM_SEEDS = 3  # the fewest on which a claim may rest: two equal ones have an interval of width 0
# the 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom
T_QUANTILES = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788,
    2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639,
    2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


def half_width(std: Any, count: int) -> Any:
    """Return half the 95 % interval of a mean by Student's t.

    Args:
        std: the standard deviation (n - 1) of the samples: a number, or an array of them.
        count: how many samples; at least 2.
    """
    t = T_QUANTILES[count - 2] if count - 2 < len(T_QUANTILES) else 1.96
    return t * std / math.sqrt(count)


@dataclass(frozen=True)
class Spread:
    """The scores of a model's seeds; there is at least one.

    Runs that failed have no score; `failed` counts them.
    """

    scores: tuple[float, ...]
    failed: int = 0

    @property
    def best(self) -> float:
        return max(self.scores)

    @property
    def median(self) -> float:
        return statistics.median(self.scores)

    @property
    def mad(self) -> float:
        """The median absolute deviation from the median."""
        return statistics.median(abs(score - self.median) for score in self.scores)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float:
        """The standard deviation (n - 1); 0 for one seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean by Student's t; None for one seed."""
        if len(self.scores) < 2:
            return None
        spread = half_width(self.std, len(self.scores))
        return self.mean - spread, self.mean + spread

    @property
    def claim_interval(self) -> tuple[float, float] | None:
        """The interval if a claim may rest on it: at least 3 seeds, and none of them failed."""
        return self.interval if len(self.scores) >= CLAIM_SEEDS and not self.failed else None

    def cell(self, number: float) -> float | str:
        """Return a number of the seeds that have a score, with the count of those that failed."""
        return f"{number:.3f} ({self.failed} failed)" if self.failed else number

    @property
    def interval_text(self) -> str:
        """The interval as text; empty for one seed."""
        ends = self.interval
        return "" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
