"""95 % confidence intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from statetrack.tasks.base import Ints

RESAMPLES = 1000  # of a bootstrap interval

Floats = NDArray[np.float64]


def wilson(right: Any, samples: Any, z: float = 1.959964) -> tuple[Floats, Floats]:
    """Of proportions, numbers or arrays; also sound where all or none are right."""
    p = np.asarray(right) / samples
    scale = 1 + z * z / samples
    centre = (p + z * z / (2 * samples)) / scale
    spread = z * np.sqrt(p * (1 - p) / samples + z * z / (4 * samples**2)) / scale
    return np.maximum(0.0, centre - spread), np.minimum(1.0, centre + spread)


def bootstrap(right: Ints, asked: Ints) -> tuple[float, float]:
    """Of sum(right) / sum(asked), over sequences drawn anew."""
    rng = np.random.default_rng(0)
    shares = np.full(len(right), 1 / len(right))
    times = rng.multinomial(len(right), shares, size=RESAMPLES)  # [resamples, sequences]
    low, high = np.quantile((times @ right) / (times @ asked), [0.025, 0.975])
    return float(low), float(high)
