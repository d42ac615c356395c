"""`python -m benchmarks numerics`: some of its cases, and that it finds errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.reliability import numerics
from benchmarks.reliability.cases import OPS, Case, draw_case
from statetrack.kernels.library import WHY_MISSING
from statetrack.ops import swiglu

pytestmark = pytest.mark.skipif(WHY_MISSING is not None, reason=f"no library: {WHY_MISSING}")
ROUND = sum(OPS.values())  # consecutive seeds that go through all ops


def test_no_row_of_sixty_cases_is_wrong(tmp_path: Path) -> None:
    table, values = tmp_path / "numerics.md", tmp_path / "numerics.json"
    numerics.main(cases=60, seed=10_000, out=table, json=str(values))
    found = json.loads(values.read_text())
    assert found["cases"] == 60
    assert not [w for w in found["worst"] if w["wrong"]]
    assert {"delta_rule, g", "slstm", "swiglu"} <= {w["op"] for w in found["worst"]}
    assert "| op | tensor | native | naive | rows | wrong |" in table.read_text()


def test_a_seed_gives_the_same_case_again() -> None:
    for seed in range(ROUND):
        first, again = draw_case(seed), draw_case(seed)
        assert str(first) == str(again)
        assert all(torch.equal(x, again.inputs[name]) for name, x in first.inputs.items())


def off_by_one_row(x: torch.Tensor, backend: str) -> torch.Tensor:
    """An op whose native kernel gets the smallest of its rows wrong."""
    y = swiglu(x, backend=backend)
    return y if backend == "naive" else torch.cat([y[:-1], 1.01 * y[-1:]])


def test_one_small_row_that_is_off_is_found() -> None:
    x = torch.ones(3, 8).double() * torch.tensor([10.0, 1.0, 2.0**-4])[:, None]
    case = Case("swiglu", off_by_one_row, {"x": x}, {"x": (0,), "output 0": (0,)})
    output, gradient = numerics.compare(case, seed=0)
    assert (output.rows, output.wrong) == (gradient.rows, gradient.wrong) == (3, 1)
    assert output.native == pytest.approx(1e-2, rel=1e-3)
    assert output.naive < 1e-6


def test_wrong_rows_end_with_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_is_wrong", lambda native, naive: native > 1e-12)
    with pytest.raises(SystemExit, match="1"):
        numerics.main(cases=3)
