"""The README's own code and commands, run as they stand."""

from __future__ import annotations

import re
import shlex

import pytest

from statetrack.automata.groups import MAX_ORDER
from statetrack.cli.main import COMMANDS, main
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
DOCS = sorted((ROOT / "docs").glob("*.md"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_python_runs_in_order() -> None:
    names: dict[str, object] = {}
    assert len(blocks("python")) == 1
    for code in blocks("python"):
        exec(code, names)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    parsed = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in parsed if words and words[0] == "statetrack"]


def test_commands_work_one_after_the_other(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = []
    for words in commands():
        more = {"demo": ["--smoke"], "train": ["--steps", "20"]}.get(words[0], [])
        expected = 1 if words[0] == "harden" else 0  # in 20 steps nothing is learned
        assert main([*words, *more]) == expected, (words, capsys.readouterr().err)
        done.append(words[0])
    assert set(done) == set(COMMANDS)
    assert (tmp_path / "runs" / "demo-1" / "index.html").is_file()
    assert (tmp_path / "runs" / "parity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in DOCS)])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text())
    local = [(ROOT / page).parent / link for link in links if "://" not in link]
    assert [str(path) for path in local if not path.exists()] == []


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 90


def test_every_page_is_linked() -> None:
    """From here, or from the front page of the site."""
    index = ROOT / "docs" / "index.md"
    listed = index.read_text().splitlines() if index.exists() else []
    for page in DOCS:
        if page != index:
            assert f"](docs/{page.name})" in README or page.stem in listed, page


def test_the_commands_are_on_the_path() -> None:
    """`make` installs into .venv only: what comes first is to activate it."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    (first, *_) = [n for n, line in enumerate(lines) if line.startswith("statetrack ")]
    assert ". .venv/bin/activate" in lines[:first]


def test_the_greatest_group() -> None:
    for page in (
        README,
        *((ROOT / name).read_text() for name in ("docs/tasks.md", "CHANGELOG.md")),
    ):
        assert f"{MAX_ORDER:,} elements" in page


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
