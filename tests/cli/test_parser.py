"""Options made of a function's signature and docstring."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from statetrack.cli.parser import Option, Parser
from statetrack.errors import UserError


def command(
    run: Path,
    words: tuple[str, ...] = (),
    *,
    hidden_size: int = 0,
    lr: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    lengths: tuple[int, ...] = (),
    prove: bool = False,
    switch: bool | None = None,
    split: Literal["test", "validation"] = "test",
    **more: Any,
) -> None:
    """Do something. And more of it.

    Args:
        run: a folder.
        lengths: 100 % of them,
            on two lines.
    """


def parse(*words: str) -> dict[str, Any]:
    return Parser("program", command).parse(words)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {}),
        (["a", "b"], {"words": ("a", "b")}),
        (["--hidden-size=3", "a"], {"hidden_size": 3, "words": ("a",)}),
        (["--hidden_size", "3"], {"hidden_size": 3}),
        (["a", "--lr", "-1e-3", "b"], {"lr": -1e-3, "words": ("a", "b")}),
        (["--lr=None"], {"lr": None}),
        (["--lr", "-inf"], {"lr": float("-inf")}),
        (["--betas", "0.5", "0.75"], {"betas": (0.5, 0.75)}),
        (["--lengths", "1", "2", "--prove"], {"lengths": (1, 2), "prove": True}),
        (["--lengths"], {"lengths": ()}),
        (["--no-prove", "--switch", "False"], {"prove": False, "switch": False}),
        (["--switch", "true"], {"switch": True}),
        (["--split=validation", "--split", "test"], {"split": "test"}),
    ],
)
def test_only_what_is_given_is_returned(words: list[str], found: dict[str, Any]) -> None:
    assert parse("folder", *words) == {"run": Path("folder"), **found}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "RUN is missing: a folder"),
        (["x", "--hidden-size=many"], "--hidden-size must be a whole number; got 'many'"),
        (["x", "--lr", "much"], "--lr must be a number; got 'much'"),
        (["x", "--switch", "yes"], "--switch must be True or False; got 'yes'"),
        (["x", "--split", "train"], "--split must be one of test, validation; got 'train'"),
        (["x", "--betas", "0.5"], "--betas: expected 2 arguments"),
        (["x", "--prove=1"], "--prove"),
        (["x", "--hidden"], "unknown option '--hidden'; known: --betas, --help"),
        (["x", "--hiden_size=3"], "unknown option '--hiden_size'; known: "),
        (["x", "--lr=--"], "--lr cannot be '--'"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        parse(*words)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        parse("--help")
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "usage: program [options] RUN [WORDS ...]\n\nDo something. And more of it."
    )
    assert "100 % of them, on two lines\n" in out
    assert "(default: 0.9 0.999)" in out
    assert "(default: 0)" in out
    assert "--prove, --no-prove" in out


def test_options_that_depend_on_others() -> None:
    """In two steps: what comes later is no option of the first, and neither is a missing value."""
    parser = Parser("program", command)
    parser.add_plugins()
    words = ["--plugin=a", "--later", "x", "--plugin", "b", "--help"]
    assert parser.first(words)["plugin"] == ["a", "b"]
    assert parser.first(["--lr"]) == {"plugin": []}
    parser.add([Option("later", str, "more", "")])
    assert parser.parse(["folder", "--later", "x"])["later"] == "x"
