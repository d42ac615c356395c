"""The notebooks: their cells run in order, and they are stored with their outputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PRINTED = {
    "own-layer": ["Rotation: 36 passed", "Rotation: token accuracy 1.0"],
    "parity": ["DeltaNet [-1,1], lengths (3, 40): accuracy 1.0", "hardened: accuracy 1.000"],
    "regex-to-network": ["Proved for words of any length: a cascade", "wrong states: 0"],
}


def code_cells(notebook: Path) -> list[Any]:
    cells = json.loads(notebook.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run_in_order(
    notebook: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mpl.use("agg")
    monkeypatch.setitem(sys.modules, "__notebook__", module := ModuleType("__notebook__"))
    for cell in code_cells(notebook):
        exec("".join(cell["source"]), vars(module))
    printed = capsys.readouterr().out
    for expected in PRINTED[notebook.stem]:
        assert expected in printed


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored(notebook: Path) -> None:
    """`make notebooks` runs all cells, of which none fails."""
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    stored = "".join("".join(output.get("text", "")) for output in outputs)
    for expected in PRINTED[notebook.stem]:
        assert expected in stored
    assert notebook.stat().st_size < 100_000
