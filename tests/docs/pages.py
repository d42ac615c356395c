"""The pages of the documentation, and how their code is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

from statetrack.cli import main
from tests.conftest import ROOT

PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]

# What is added to a command so that it does not take long.
SHORTER = {
    "check": ["--only", "steps"],
    "demo": ["--smoke", "--jobs", "1"],
    "diagnose": ["--samples", "16", "--max-length", "50"],
    "eval": ["--samples", "16"],
    "report": ["--samples", "16"],
    "selftest": ["--no-timings"],
    "sweep": ["--steps", "20", "--batch-size", "8", "--samples", "16", "--jobs", "1"],
    "sweep pack": [],
    "sweep status": [],
    "sweep unpack": [],
    "train": ["--steps", "20"],
}
# Blocks that need other packages, and the test that runs them.
ELSEWHERE = {
    ("docs/other-packages.md", "use_native_kernels(model)"): "tests/peers/hf/test_hf_kernels.py"
}
# Lines that prepare a shell. They are not run, nor are `make` targets.
PREPARE = (". .venv/bin/activate", "pip install ")


class Block(NamedTuple):
    language: str
    code: str


def text(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page that can be run, in order."""
    found = re.findall(r"^```(python|sh|console)\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE)
    return [Block(language, code) for language, code in found]


def command_lines(page: str) -> list[str]:
    shell = [code for language, code in blocks(page) if language != "python"]
    lines = [line.removeprefix("$ ") for code in shell for line in code.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def commands(page: str) -> list[list[str]]:
    """The arguments of every `statetrack` that the blocks of a page call."""
    parsed = [shlex.split(line, comments=True) for line in command_lines(page)]
    return [words[1:] for words in parsed if words[0] == "statetrack"]


def run(
    page: str, names: dict[str, Any], expect: Callable[[str], int] = lambda name: 0
) -> list[dict[str, Any]]:
    """Run the blocks of a page in the order in which they stand, in this process and folder.

    Args:
        page: its path in the repository.
        names: what the python blocks find defined; they add to it.
        expect: the exit code of a command of this name.

    Returns:
        the names that are defined after each block.
    """
    history = []
    for language, code in blocks(page):
        if any(page == place and what in code for place, what in ELSEWHERE):
            continue
        if language == "python":
            exec(compile(code, page, "exec"), names)
        else:
            for line in code.splitlines():
                _run_line(line.removeprefix("$ "), expect)
        history.append(dict(names))
    return history


def _run_line(line: str, expect: Callable[[str], int]) -> None:
    words = shlex.split(line, comments=True)
    if not words or words[0] == "make" or line.startswith(PREPARE):
        return
    assert words[0] == "statetrack", f"the test cannot run {line!r}"
    shorter = SHORTER.get(" ".join(words[1:3]), SHORTER.get(words[1], []))
    more = [] if "--only" in words else shorter
    assert main([*words[1:], *more]) == expect(words[1]), line
