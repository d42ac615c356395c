"""A document in every format."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest

from statetrack.report.document import Document, Figure, Series, Table
from statetrack.report.render import file_names, print_document, write_document
from statetrack.report.text import (
    latex_text,
    markdown_table,
    to_csv,
    to_latex,
    to_markdown,
    to_plain,
)
from statetrack.terminal import PlainConsole
from tests.report.html import Page
from tests.report.sample import DOCUMENT, HEAT, HOSTILE, LENGTH, PANELS, SCORES


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "made"
    write_document(DOCUMENT, folder)
    return folder


def test_the_files(written: Path) -> None:
    assert sorted(p.name for p in written.iterdir()) == [
        "document.json", "eigenvalues.png", "eigenvalues.svg", "index.html", "length.png",
        "length.svg", "report.md", "scores.csv", "scores.tex",
    ]  # fmt: skip


def test_pictures(written: Path) -> None:
    for name in ("length", "eigenvalues"):
        picture = matplotlib.image.imread(written / f"{name}.png")
        assert len({tuple(color) for color in picture[::5, ::5].reshape(-1, 4)}) > 10  # not blank
        root = ElementTree.fromstring((written / f"{name}.svg").read_bytes())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = (written / "length.svg").read_text()
    for shown in ("trained up to 40", "the paper", "Accuracy against length", "scaled accuracy"):
        assert shown in text


def test_equal_documents_give_equal_files(written: Path, tmp_path: Path) -> None:
    write_document(DOCUMENT, tmp_path)
    for file in written.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_page_stands_alone(written: Path) -> None:
    page = Page((written / "index.html").read_text())
    page.check_stands_alone()
    assert page.tags.count("figure") == 2
    assert page.tags.count("details") == 1
    for text in (
        "DeltaNet [-1,1]",
        "1.000",
        "12,345",
        "1,234.5",
        '"lr": 0.001',
        "cut from 100,000",
    ):
        assert text in page.text


def test_panels_and_a_heat_map_are_on_the_page(tmp_path: Path) -> None:
    write_document(replace(DOCUMENT, figures=[PANELS, HEAT]), tmp_path)
    page = Page((tmp_path / "index.html").read_text())
    page.check_stands_alone()
    assert page.source.count('<ul class="legend"') == 1  # a heat map has none
    assert len(page.ids) == len(set(page.ids))
    plain = json.loads((tmp_path / "document.json").read_text())
    assert plain["figures"][0]["panels"][1]["title"] == "maths"
    assert plain["figures"][1]["heat"]["values"] == [[0.0, 0.5, 1.0], [1.0, 0.1, None]]


def test_every_way_to_draw_a_figure_is_on_the_page(written: Path) -> None:
    text = (written / "index.html").read_text()
    assert [text.count(f'data-raw="{r}" data-log="{n}"') for r in "01" for n in "01"] == [
        2,
        1,
        1,
        1,
    ]
    assert text.count("hidden>") == 3  # only the first one of each figure is shown
    # the line and the interval of 2 models, 4 seeds and the paper's line, in 4 drawings; 1 scatter
    assert text.count('<g class="series') == 4 * (2 * 2 + 4 + 1) + 1
    assert text.count('<g class="series faint"') == 4 * 4
    assert text.count('<span data-series="0 1 2">') == 1  # a model with its seeds


def test_ids_on_the_page_are_unique(written: Path) -> None:
    ids = Page((written / "index.html").read_text()).ids
    assert len(ids) == len(set(ids))


def hostile() -> Document:
    table = Table(HOSTILE, [HOSTILE, "b"], [[HOSTILE, 1.0]], note=HOSTILE)
    figure = Figure(HOSTILE, HOSTILE, HOSTILE, [Series(HOSTILE, [1, 2], [0, 1])], note=HOSTILE)
    figure = replace(figure, marks=[(1, HOSTILE)])
    facts, configs = {HOSTILE: HOSTILE}, {HOSTILE: {"a": HOSTILE}}
    return Document("bad", HOSTILE, [HOSTILE], [table], [figure], [HOSTILE], facts, configs)


def test_the_page_escapes_what_it_is_given(tmp_path: Path) -> None:
    write_document(hostile(), tmp_path)
    text = (tmp_path / "index.html").read_text()
    page = Page(text)
    assert "<script>alert" not in text
    assert page.tags.count("script") == 1
    assert page.text.count(HOSTILE) >= 12
    ElementTree.fromstring(next(tmp_path.glob("*.svg")).read_bytes())


def test_csv() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(SCORES))))
    assert rows[0] == list(SCORES.columns)
    assert rows[1] == ["DeltaNet [-1,1]", "1.000", "1.000", "0.990 to 1.000", "1.000", "12345"]
    assert rows[2] == ["DeltaNet [0,1]", "0.017", "0.000", "", "", "12345"]
    assert list(csv.reader(io.StringIO(to_csv(hostile().tables[0]))))[1] == [HOSTILE, "1.000"]


def test_latex() -> None:
    lines = to_latex(SCORES, "scores").splitlines()
    assert r"  \begin{tabular}{lrrlrr}" in lines
    assert r"    DeltaNet {[}0,1{]} & 0.017 & 0.000 &  &  & 12,345 \\" in lines
    assert [line.strip() for line in lines].count(r"\midrule") == 1
    assert latex_text(r"50% of_$x^2$ & {a} # ~ \ <") == (
        r"50\% of\_\$x\textasciicircum{}2\$ \& \{a\} \# \textasciitilde{} \textbackslash{} "
        r"\textless{}"
    )


def test_markdown() -> None:
    text = to_markdown(DOCUMENT, ["scores"], ["length", "eigenvalues"])
    assert text.startswith("# Parity\n\nDeltaNet solves it in [-1,1].\n\nMade by `statetrack")
    assert "| DeltaNet [0,1] | 0.017 | 0.000 |  |  | 12,345 |" in text
    assert "| --- | ---: | ---: | --- | ---: | ---: |" in text
    assert "![Accuracy against length](length.png)" in text
    assert "- Steps are cut from 100,000 to 400." in text
    (row,) = markdown_table(Table("", ["a"], [[HOSTILE]])).splitlines()[2:]
    assert r"\<script>" in row
    assert r"\| a_b \*c\*" in row
    assert r"[1\](2)" in row


def test_data() -> None:
    numbers = Series("a", np.array([1, 2]), [1 / 3, math.nan])
    table = Table("t", ["n", "m"], [[np.int64(3), np.float64(0.25)]])
    plain = to_plain(Document("d", "d", tables=[table], figures=[Figure("f", "", "", [numbers])]))
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["schema"] == 1
    assert plain["figures"][0]["series"][0]["x"] == [1, 2]
    assert plain["figures"][0]["series"][0]["y"] == [0.3333, None]
    assert plain["tables"][0]["rows"] == [[3, 0.25]]
    assert to_csv(table) == "n,m\n3,0.250\n"


@pytest.mark.parametrize(
    ("number", "stored"),
    [
        (65536.0, 65536.0), (123457.0, 123457.0), (0.123456, 0.1235), (12.3456, 12.35),
        (0.99996, 0.99996), (-0.999999961, -0.99999996), (2.00004, 2.00004), (12345.67, 12345.7),
        (1e-9, 1e-9), (1 - 2**-53, 1 - 2**-53), (0.0, 0.0), (-1.0, -1.0), (math.inf, None),
    ],
)  # fmt: skip
def test_numbers_of_figures(number: float, stored: float | None) -> None:
    line = Series("a", [number], [1.0])
    plain = to_plain(Document("d", "d", figures=[Figure("f", "", "", [line])]))
    assert plain["figures"][0]["series"][0]["x"] == [stored]


def test_document_json(written: Path) -> None:
    text = (written / "document.json").read_text()
    assert json.loads(text) == json.loads(json.dumps(to_plain(DOCUMENT)))
    assert '"x": [ 10, 20, 40, 80, 160, 320 ]' in text  # on one line


def test_names_of_files() -> None:
    tables = [Table(t, [], []) for t in ("One table", "One table", "a/../b", "")]
    assert file_names(tables) == ["one_table", "one_table--2", "a_.._b", "unnamed"]
    assert file_names([SCORES]) == ["scores"]


def test_an_empty_document(tmp_path: Path) -> None:
    write_document(Document("empty", "Nothing yet"), tmp_path)
    assert Page((tmp_path / "index.html").read_text()).tags.count("h1") == 1


def test_lines_of_one_point_and_with_gaps(tmp_path: Path) -> None:
    point = Series("point", [40], [0.5], [0.4], [0.6])
    gap = Series("gap", [1, 2, 3], [0.1, math.nan, 0.3])
    write_document(
        Document("d", "d", figures=[replace(LENGTH, series=[point, gap], raw=[])]), tmp_path
    )
    text = (tmp_path / "index.html").read_text()
    assert text.count('data-series="0"') == 2 * 2 + 1  # point and interval, twice, and the legend


def test_print() -> None:
    out = StringIO()
    print_document(PlainConsole(file=out, width=120), DOCUMENT)
    for text in (
        "DeltaNet solves it in [-1,1].",
        "0.017",
        "The majority baseline is 0.",
        "- Steps",
    ):
        assert text in out.getvalue()
