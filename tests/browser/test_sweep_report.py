"""The page that `statetrack report` makes of a real sweep, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from statetrack.cli.main import main
from tests.browser.webdriver import Browser, browser

pytestmark = pytest.mark.browser

GRID = "--allow-neg-eigval both --seed 0,1 --num-layers 1 --hidden-size 8 --batch-size 4"
STEPS = "--steps 4 --max-length 8 --log-every 1 --eval-every 2 --eval-samples 8 --eval-lengths 9-12"
MEASURED = "--lengths 9-12 --curve 16 --samples 8 --spectrum --jobs 1"
FIGURES = ("length", "loss", "training-accuracy", "spectrum", "validation-9-12")
DRAWN = "[data-variant]:not([hidden])"


def displayed(page: Browser, figure: str) -> list[bool]:
    """Whether each series is displayed; WebDriver's own answer is no for a flat line."""
    series = f"document.querySelectorAll('#figure-{figure} {DRAWN} .series')"
    visible = "line => getComputedStyle(line).display !== 'none'"
    return list(page.run(f"[...{series}].map({visible})"))


def test_the_page_of_a_sweep(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    words = f"--mixer delta_net {GRID} {STEPS} {MEASURED}".split()
    assert main(["sweep", *words, "--out", str(sweep)]) == 0
    assert main(["report", str(sweep)]) == 0
    with browser() as page:
        page.open((sweep / "report" / "index.html").as_uri())
        assert page.text("h1 + .summary").startswith("4 of 4 runs are done, 0 failed.")
        assert page.shown("#table-grid table") == [True]
        firsts = page.run("[...document.querySelectorAll('#table-grid th[scope=row]')]"
                          ".map(cell => cell.textContent)")  # fmt: skip
        assert sorted(firsts) == ["False", "True"]
        for name in FIGURES:
            assert page.shown(f"#figure-{name} {DRAWN} svg") == [True], name
            every = displayed(page, name)
            assert every, name
            assert all(every), name
            page.click(f'#figure-{name} button[data-entry="[0,1]"]')
            assert 0 < sum(displayed(page, name)) < sum(every), name
        assert page.errors() == []
        assert page.run("performance.getEntriesByType('resource').length") == 0
