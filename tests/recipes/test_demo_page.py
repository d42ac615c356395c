"""Figure, tables and page, from made-up results."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import pytest

from statetrack.recipes.demo_page import page, print_tables, tables, write_report
from statetrack.terminal import PlainConsole
from tests.recipes.results import demo

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that tags are closed in order; collects text, tags and what the page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("href", "xlink:href", "src", "action", "data", "srcset"):
                self.links.append(value or "")
            self.links += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_report(demo(folder).summary(), folder)
    return folder


def test_the_files(written: Path) -> None:
    assert sorted(p.name for p in written.iterdir()) == [
        "figure.png",
        "figure.svg",
        "index.html",
        "results.json",
        "runs",
    ]


def test_results_are_the_summary(written: Path) -> None:
    results = json.loads((written / "results.json").read_text())
    assert results["complete"] is True
    assert len(results["runs"]) == 14


def test_the_figures_can_be_read(written: Path) -> None:
    picture = matplotlib.image.imread(written / "figure.png")
    assert picture.shape[0] > 400
    assert picture.shape[1] > 1000
    assert len({tuple(color) for color in picture[::5, ::5].reshape(-1, 4)}) > 10  # not blank
    root = ElementTree.fromstring((written / "figure.svg").read_bytes())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20


def test_the_figure_is_the_same_every_time(written: Path, tmp_path: Path) -> None:
    first = (written / "figure.svg").read_bytes()
    write_report(demo(tmp_path).summary(), tmp_path)
    assert (tmp_path / "figure.svg").read_bytes() == first


def test_the_page_stands_alone(written: Path) -> None:
    text = (written / "index.html").read_text()
    parsed = Page(text)
    assert text.startswith("<!doctype html>")
    assert "svg" in parsed.tags
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(parsed.tags)
    assert all(link.startswith("#") for link in parsed.links), parsed.links
    assert "@import" not in text
    # what looks like an address is the name of a vocabulary inside the figure
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert all(re.match(r"http://(www\.w3|purl|creativecommons)\.org/", a) for a in addresses)


def test_the_page_tells_everything(written: Path) -> None:
    parsed = Page((written / "index.html").read_text())
    for text in ("DeltaNet [-1,1]", "Mamba [0,1]", "seed 1", "0.500", "12,345 parameters"):
        assert text in parsed.text
    assert parsed.tags.count("table") == 2
    assert parsed.tags.count("tr") == 2 + 4 + 2
    assert parsed.tags.count("details") == 14
    assert parsed.text.count('"schema": 2') == 14  # the configurations
    assert "Interrupted" not in parsed.text
    assert "Quick mode" not in parsed.text


def test_the_page_escapes_what_it_is_given(tmp_path: Path) -> None:
    summary = demo(tmp_path).summary()
    bad = "<script>alert('1')</script> & <b>"
    summary["versions"]["torch"] = bad
    summary["runs"][0]["model"] = bad
    summary["parity"][0]["model"] = bad
    summary["swaps"][0]["paper"] = bad
    summary["configs"][summary["runs"][0]["run"]]["task"] = bad
    text = page(summary, "<?xml version='1.0'?><svg></svg>")
    parsed = Page(text)
    assert "script" not in parsed.tags
    assert "<script" not in text
    assert parsed.text.count(bad) == 5
    assert "<?xml" not in text


def test_a_smoke_test_says_that_its_numbers_mean_nothing(tmp_path: Path) -> None:
    summary = {**demo(tmp_path).summary(), "smoke": True}
    assert "These numbers mean nothing" in page(summary, "<svg></svg>")


@pytest.mark.parametrize("done", [0, 1, 6])
def test_an_interrupted_demo_has_a_page(done: int, tmp_path: Path) -> None:
    write_report(demo(tmp_path, done).summary(), tmp_path)
    parsed = Page((tmp_path / "index.html").read_text())
    assert "Interrupted: not every run is here." in parsed.text
    assert parsed.tags.count("details") == done
    assert json.loads((tmp_path / "results.json").read_text())["complete"] is False
    ElementTree.fromstring((tmp_path / "figure.svg").read_bytes())
    assert matplotlib.image.imread(tmp_path / "figure.png").size > 0


def test_tables(tmp_path: Path) -> None:
    parity, swaps = tables(demo(tmp_path).summary())
    assert "40-256" in parity[0]
    assert parity[1] == ["model", "best", "median", "every seed", "paper"]
    scores = ["1.000", "0.500", "0.250 1.000 0.500"]
    assert parity[2] == [
        ["Mamba [0,1]", *scores, "0.000 / 0.000"],
        ["Mamba [-1,1]", *scores, "1.000 / 1.000"],
        ["DeltaNet [0,1]", *scores, "0.017 / 0.010"],
        ["DeltaNet [-1,1]", *scores, "1.000 / 0.999"],
    ]
    assert swaps[1] == ["model", "32", "64", "128", "256", "paper (Figure 4)"]
    assert [row[:5] for row in swaps[2]] == [
        ["DeltaNet [0,1]", "1.000", "0.250", "0.250", "0.250"],
        ["DeltaNet [-1,1]", "1.000", "0.250", "0.250", "0.250"],
    ]


@pytest.mark.parametrize("done", [0, 1, 14])
def test_tables_can_be_printed(done: int, tmp_path: Path) -> None:
    out = StringIO()
    print_tables(demo(tmp_path, done).summary(), PlainConsole(file=out, width=120))
    assert ("DeltaNet [-1,1]" in out.getvalue()) == (done > 0)
    assert ("Mamba [0,1]" in out.getvalue()) == (done == 14)
