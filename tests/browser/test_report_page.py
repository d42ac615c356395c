"""The page of a report in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statetrack.report.render import write_document
from tests.browser.webdriver import Browser, browser
from tests.report.sample import DOCUMENT

pytestmark = pytest.mark.browser

FIGURE = "#figure-length"
DRAWN = f"{FIGURE} [data-variant]:not([hidden])"
DELTA = f'{FIGURE} button[data-entry="DeltaNet [0,1]"]'


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("report")
    write_document(DOCUMENT, folder)
    return (folder / "index.html").as_uri()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Browser]:
    chromium.open(address)
    yield chromium
    assert chromium.errors() == []
    assert chromium.run("performance.getEntriesByType('resource').length") == 0


def drawn(page: Browser, series: int) -> list[bool]:
    """Whether the line and the interval of a series are displayed."""
    return page.shown(f'{DRAWN} .series[data-series="{series}"]')


def test_table_and_figures(page: Browser) -> None:
    assert page.shown("#table-scores table") == [True]
    assert page.text("#table-scores tbody tr:first-child") == (
        "DeltaNet [-1,1] 1.000 1.000 0.990 to 1.000 1.000 12,345"
    )
    assert page.shown("figure [data-variant]:not([hidden]) svg") == [True, True]
    width, height = page.run(f"(r => [r.width, r.height])({box(DRAWN + ' svg')})")
    assert width > 600
    assert height > 300
    assert "trained up to 40" in page.text(f"{DRAWN} svg")


def box(selector: str) -> str:
    return f"document.querySelector('{selector}').getBoundingClientRect()"


def test_a_click_on_the_legend_toggles_a_series(page: Browser) -> None:
    assert drawn(page, 3) == [True, True]
    page.click(DELTA)
    assert drawn(page, 3) == [False, False]
    assert drawn(page, 4) == [False]  # its seeds too
    assert drawn(page, 0) == [True, True]  # and no other
    assert page.get(f"element/{page.one(DELTA)}/attribute/aria-pressed") == "false"
    page.click(DELTA)
    assert drawn(page, 3) == [True, True]


def test_switches(page: Browser) -> None:
    def axes() -> tuple[bool, bool]:
        text = page.text(f"{DRAWN} svg")
        return "raw accuracy" in text, "128" in text  # ticks of a logarithmic axis

    assert axes() == (False, True)
    page.click(f'{FIGURE} [data-control="raw"]')
    assert axes() == (True, True)
    page.click(f'{FIGURE} [data-control="log"]')
    assert axes() == (True, False)
    page.click(f'{FIGURE} [data-control="raw"]')
    assert axes() == (False, False)
    page.click(DELTA)  # holds for every way to draw the figure
    page.click(f'{FIGURE} [data-control="log"]')
    assert axes() == (False, True)
    assert drawn(page, 3) == [False, False]


def test_single_seeds(page: Browser) -> None:
    assert drawn(page, 4) == [True]
    page.click(f'{FIGURE} [data-control="seeds"]')
    assert drawn(page, 4) == [False]
    assert drawn(page, 3) == [True, True]
    page.click(f'{FIGURE} [data-control="seeds"]')
    assert drawn(page, 4) == [True]
    assert page.find("#figure-eigenvalues [data-control]") == []  # nothing to switch


def test_without_javascript(address: str) -> None:
    with browser(prefs={"profile.managed_default_content_settings.javascript": 2}) as page:
        page.open(address)
        assert page.find("button") == []
        assert page.shown("figure [data-variant]:not([hidden]) svg") == [True, True]
        assert drawn(page, 3) == [True, True]
        assert page.shown(f"{FIGURE} .legend span") == [True] * 3


def test_on_a_phone(address: str) -> None:
    phone = {"deviceMetrics": {"width": 390, "height": 844, "pixelRatio": 2.0}}
    with browser(mobileEmulation=phone) as page:
        page.open(address)
        assert page.run("document.documentElement.clientWidth") == 390
        assert page.run("document.documentElement.scrollWidth") == 390  # boxes scroll, not it
        page.click(DELTA)
        assert drawn(page, 3) == [False, False]
