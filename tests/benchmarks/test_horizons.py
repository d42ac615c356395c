"""What counts as agreement of a predicted horizon with a measured one."""

from __future__ import annotations

import pytest

from benchmarks.horizons import LENGTHS, agrees, cases
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        (99, 200, False),
        (100, 200, True),
        (400, 200, True),
        (401, 200, False),
        (0, 0, True),
        (2, 0, True),
        (1_000_000, LENGTHS[-1], True),
        (LENGTHS[-1] - 1, LENGTHS[-1], False),
    ],
)
def test_agreement(predicted: int, measured: int, expected: bool) -> None:
    assert agrees({"predicted": predicted, "measured": measured}) is expected


def test_every_model_has_a_row_in_the_results() -> None:
    text = (ROOT / "results/diagnose.md").read_text()
    for case in cases(8000):
        row = f"| {case.task} | {case.config.model.title} | {case.config.model.num_layers} | "
        assert f"{row}{case.seed} |" in text
