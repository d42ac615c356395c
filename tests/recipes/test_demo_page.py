"""Figure, tables and page, from made-up results."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest

from statetrack.recipes.demo_page import demo_document, tables, write_report
from statetrack.report.render import print_tables
from statetrack.terminal import PlainConsole
from tests.recipes.results import SCORES, demo
from tests.report.html import Page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_report(demo(folder).summary(), folder)
    return folder


def test_the_files(written: Path) -> None:
    assert sorted(p.name for p in written.iterdir()) == [
        "document.json",
        "index.html",
        "parity.csv",
        "parity.png",
        "parity.svg",
        "parity.tex",
        "report.md",
        "results.json",
        "runs",
        "swaps.csv",
        "swaps.png",
        "swaps.svg",
        "swaps.tex",
    ]


def test_results_are_the_summary(written: Path) -> None:
    results = json.loads((written / "results.json").read_text())
    assert results["complete"] is True
    assert len(results["runs"]) == 14


def test_the_figures(tmp_path: Path) -> None:
    parity, swaps = demo_document(demo(tmp_path).summary()).figures
    assert parity.marks == ((40, "trained up to 40"),)
    assert swaps.marks == ((32, "trained up to 32"),)
    models = {"Mamba [0,1]", "Mamba [-1,1]", "DeltaNet [0,1]", "DeltaNet [-1,1]"}
    assert {line.label for line in parity.series if not line.faint} == models
    assert sum(line.faint for line in parity.series) == 12  # the seeds
    assert len(swaps.series) == 2
    mean = next(line for line in parity.series if not line.faint)
    assert mean.y[0] == 1
    assert mean.y[-1] == pytest.approx(sum(SCORES) / 3)


def test_the_page_tells_everything(written: Path) -> None:
    parsed = Page((written / "index.html").read_text())
    for text in ("DeltaNet [-1,1]", "Mamba [0,1]", "seed 4", "0.500", "12,345 parameters"):
        assert text in parsed.text
    parsed.check_stands_alone()
    assert parsed.tags.count("table") == 3  # with that of the versions
    assert parsed.tags.count("details") == 14
    assert parsed.text.count('"schema": 2') == 14  # the configurations
    assert "Interrupted" not in parsed.text


def test_a_smoke_test_says_that_its_numbers_mean_nothing(tmp_path: Path) -> None:
    summary = {**demo(tmp_path).summary(), "smoke": True}
    assert "These numbers mean nothing" in demo_document(summary).summary[0]


@pytest.mark.parametrize("done", [0, 1, 6])
def test_an_interrupted_demo_has_a_page(done: int, tmp_path: Path) -> None:
    write_report(demo(tmp_path, done).summary(), tmp_path)
    parsed = Page((tmp_path / "index.html").read_text())
    assert "Interrupted: not every run is here." in parsed.text
    assert parsed.tags.count("details") == done
    assert json.loads((tmp_path / "results.json").read_text())["complete"] is False


def test_tables(tmp_path: Path) -> None:
    parity, swaps = tables(demo(tmp_path).summary())
    assert "40-256" in parity.title
    assert parity.columns[:4] == ["model", "best", "median", "every seed"]
    scores = [1.0, 0.5, "0.250 1.000 0.500"]
    assert parity.rows == [
        ["Mamba [0,1]", *scores, 0.0, 0.0],
        ["Mamba [-1,1]", *scores, 1.0, 1.0],
        ["DeltaNet [0,1]", *scores, 0.017, 0.010],
        ["DeltaNet [-1,1]", *scores, 1.0, 0.999],
    ]
    assert swaps.columns == ["model", "32", "64", "128", "256", "paper (Figure 4)"]
    assert [row[:5] for row in swaps.rows] == [
        ["DeltaNet [0,1]", 1.0, 0.25, 0.25, 0.25],
        ["DeltaNet [-1,1]", 1.0, 0.25, 0.25, 0.25],
    ]


@pytest.mark.parametrize("done", [0, 1, 14])
def test_tables_can_be_printed(done: int, tmp_path: Path) -> None:
    out = StringIO()
    print_tables(PlainConsole(file=out, width=120), tables(demo(tmp_path, done).summary()))
    assert ("DeltaNet [-1,1]" in out.getvalue()) == (done > 0)
    assert ("Mamba [0,1]" in out.getvalue()) == (done == 14)
