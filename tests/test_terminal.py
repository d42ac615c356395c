"""Texts of users are printed as they are."""

from __future__ import annotations

import ast
from io import StringIO
from pathlib import Path

import pytest

from statetrack.terminal import PlainConsole, print_table
from tests.conftest import ROOT, Command
from tests.training.small import FLAGS

MARKUP = "regex:(a[/]b[red])* :smile:"


@pytest.mark.parametrize("terminal", [False, True])
def test_brackets_are_no_markup(terminal: bool) -> None:
    out = StringIO()
    console = PlainConsole(file=out, width=200, force_terminal=terminal, no_color=True)
    console.print(f"printed {MARKUP}")
    print_table(console, f"title {MARKUP}", [f"column {MARKUP}"], [[f"cell {MARKUP}"]])
    with console.status(f"status {MARKUP}") as status:
        status.update(f"updated {MARKUP}")
    texts = ["printed", "title", "column", "cell", *(["updated"] if terminal else [])]
    for text in texts:
        assert f"{text} {MARKUP}" in out.getvalue()


def test_there_is_no_other_console() -> None:
    """rich's own would read brackets in names and paths as markup."""
    for folder in ("src", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            if file.name == "terminal.py":
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module == "rich.console":
                    assert "Console" not in [name.name for name in node.names], file


def test_a_task_with_brackets_in_its_name(command: Command, tmp_path: Path) -> None:
    task, folder = "regex:(a[/]b)*", tmp_path / "[/]run"
    assert command("train", *FLAGS, f"--task={task}", "--out", folder).code == 0
    code, out, err = command("eval", folder, "--lengths=5", "--samples=4")
    assert (code, err) == (0, "")
    assert task in out
