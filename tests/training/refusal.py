"""Checks of commands that must be refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.reliability.processes import snapshot
from statetrack import cli
from tests.training.small import FLAGS

Refused = Callable[..., None]


def assert_refused(capsys: pytest.CaptureFixture[str], *args: str | Path, says: list[str]) -> None:
    """Exit code 2, one sentence, and below the current folder nothing has changed."""
    before = snapshot(Path.cwd())
    code = cli.main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert re.fullmatch(r"statetrack: error: [^\n]+\n", err), err
    for text in says:
        assert text in err
    assert snapshot(Path.cwd()) == before


def flags(*changes: str) -> list[str]:
    """Those of a small run, with changes."""
    changed = {change.partition("=")[0] for change in changes}
    return [flag for flag in FLAGS if flag.partition("=")[0] not in changed] + list(changes)
