"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import statetrack

ROOT = Path(statetrack.__file__).parent
WITH_EXAMPLES = [
    ".".join(("statetrack", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for file in sorted(ROOT.rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_docstring_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples may write files
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
