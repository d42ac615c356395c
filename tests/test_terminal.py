"""Texts of users are printed as they are, and tables as wide as the terminal."""

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


COLUMNS = ["model", "parity, the paper's model", *["paper", "early"] * 5, "why it was stopped"]
ROWS = [[f"DeltaNet [{low},1], n = 2", *["0.123 ± 0.045"] * 11, "a long reason"] for low in (0, -1)]


@pytest.mark.parametrize("width", [80, 100, 400])
def test_numbers_are_whole_in_a_table_that_is_too_wide(width: int) -> None:
    out = StringIO()
    console = PlainConsole(file=out, width=width, force_terminal=True, color_system=None)
    print_table(console, "Table", COLUMNS, ROWS)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert out.getvalue().count("0.123 ± 0.045") == 11 * len(ROWS)
    for row in ROWS:  # each part of the table names its rows
        assert sum(row[0] in line for line in lines) == out.getvalue().count("└")


def test_two_columns_name_the_rows() -> None:
    out = StringIO()
    console = PlainConsole(file=out, width=40, force_terminal=True, color_system=None)
    rows = [["parity", name, *["0.123"] * 6] for name in ("Mamba", "sLSTM")]
    print_table(console, "Table", ["task", "model", *"abcdef"], rows)
    assert out.getvalue().count("parity │ Mamba") == out.getvalue().count("model") == 3


def test_a_pipe_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = StringIO()
    print_table(PlainConsole(file=out), "Table", COLUMNS, ROWS)
    assert len(out.getvalue().splitlines()) == 5 + len(ROWS)


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
