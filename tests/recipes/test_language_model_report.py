"""The claims of the report of language models about pairs of runs."""

from __future__ import annotations

from typing import Any

import pytest

from statetrack.recipes.language_model_report import _differences, _summary


def pairs(count: int) -> dict[str, list[dict[str, Any]]]:
    """Return runs in both ranges; [-1,1] has a loss that is lower by a little over 1."""
    return {
        f"DeltaNet {sign} tiny": [
            {"seed": seed, "validation": [{"loss": loss + 0.01 * seed * loss}], "perplexity": []}
            for seed in range(count)
        ]
        for sign, loss in (("[0,1]", 3.0), ("[-1,1]", 2.0))
    }


@pytest.mark.parametrize(
    ("count", "failed", "expected"),
    [
        (3, [], "[-1,1] is better than [0,1]"),
        (2, [], "no difference is claimed between the ranges"),
        (3, ["DeltaNet [0,1] tiny"], "no difference is claimed between the ranges, because 1 run"),
        (3, ["Mamba [0,1] tiny"], "[-1,1] is better than [0,1]"),
    ],
)
def test_a_difference_needs_three_pairs_and_no_failed_run(
    count: int, failed: list[str], expected: str
) -> None:
    (text,) = _summary(_differences(pairs(count), failed, 32))
    assert text.startswith(f"DeltaNet tiny, validation loss: {expected}")


def test_a_single_pair_names_the_runs_that_failed() -> None:
    (text,) = _summary(_differences(pairs(1), ["DeltaNet [0,1] tiny"], 32))
    assert text.startswith("DeltaNet tiny: one pair of runs, 1 failed, [-1,1] minus [0,1]")
