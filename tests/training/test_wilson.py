"""The confidence interval of a proportion."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.training.evaluate import wilson


@pytest.mark.parametrize(
    ("right", "samples", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), Table I, method 3
        pytest.param(81, 263, 0.2553, 0.3662, id="81 of 263"),
        pytest.param(15, 148, 0.0624, 0.1605, id="15 of 148"),
        pytest.param(0, 20, 0.0, 0.1611, id="0 of 20"),
        pytest.param(1, 29, 0.0061, 0.1718, id="1 of 29"),
        pytest.param(10, 10, 0.7225, 1.0, id="10 of 10"),
        pytest.param(5, 10, 0.2366, 0.7634, id="5 of 10"),
    ],
)
def test_known_values(right: int, samples: int, low: float, high: float) -> None:
    assert wilson(right, samples) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000), st.data())
def test_it_holds_the_share_and_lies_in_0_to_1(samples: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, samples))
    low, high = wilson(right, samples)
    assert 0 <= low < high <= 1
    assert low - 1e-12 <= right / samples <= high + 1e-12
    mirrored = wilson(samples - right, samples)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)


@pytest.mark.parametrize("samples", [1, 10, 1000])
def test_none_or_all_right_is_not_certain(samples: int) -> None:
    z2 = 1.959964**2
    assert wilson(0, samples) == pytest.approx((0, z2 / (samples + z2)), abs=1e-12)
    assert wilson(samples, samples) == pytest.approx((samples / (samples + z2), 1), abs=1e-12)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_it_covers_the_truth_about_95_times_in_100(p: float) -> None:
    n = 100
    covered = 0.0
    for k in range(n + 1):
        low, high = wilson(k, n)
        if low <= p <= high:
            covered += comb(n, k) * p**k * (1 - p) ** (n - k)
    assert 0.93 < covered < 0.98
