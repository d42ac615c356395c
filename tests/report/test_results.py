"""Figures of results of a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from statetrack.report.document import Series
from statetrack.report.results import hardening_figure


def result(seed: int, trained: float, hardened: float) -> dict[str, Any]:
    def evaluated(share: float) -> dict[str, Any]:
        rows = {str(n): {"max_length": n, "token_accuracy": share / n} for n in (1, 2)}
        return {"evaluations": rows}

    return {"seed": seed, "trained": evaluated(trained), "hardened": evaluated(hardened)}


def drawn(results: list[dict[str, Any]], **options: Any) -> list[Series]:
    figure = hardening_figure("", {"a": results}, 40, hardened={"a"}, **options)
    assert figure is not None
    return list(figure.series)


def test_intervals_of_shares_stay_within_0_and_1() -> None:
    results = [result(seed, share, 1.0) for seed, share in enumerate((1.0, 1.0, 0.1))]
    trained, *faint, hardened = drawn(results, seeds=True)
    assert trained.y == pytest.approx([0.7, 0.35])
    assert (trained.low, trained.high) == (
        [0.0, 0.0],
        [1.0, pytest.approx(0.35 + 0.6455, abs=1e-4)],
    )
    assert (hardened.label, hardened.group, hardened.dashed) == ("a, hardened", "a", True)
    assert hardened.low == hardened.high == hardened.y == [1.0, 0.5]
    assert [line.faint for line in faint] == [True] * 3
    assert len(drawn(results, seeds=False)) == 2


def test_a_single_seed_has_no_interval() -> None:
    trained, hardened = drawn([result(0, 0.5, 1.0)], seeds=False)
    assert trained.low is trained.high is hardened.low is hardened.high is None
