"""The code of docs/diagnostics.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from statetrack.diagnosis.spectrum import MAX_PAIRS
from statetrack.layers import MambaConfig
from statetrack.models import ModelConfig, SequenceModel
from tests.conftest import ROOT


def test_the_limit() -> None:
    assert f"up to {MAX_PAIRS:,} pairs" in (ROOT / "docs/diagnostics.md").read_text()


def test_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/diagnostics.md").read_text(), re.S)
    model = SequenceModel(ModelConfig(hidden_size=8, mixer=MambaConfig(allow_neg_eigval=True)))
    names: dict[str, object] = {"model": model}
    exec(code, names)
    assert "unless m divides 4" in capsys.readouterr().out  # two layers of a real diagonal
    assert (tmp_path / "eigenvalues.png").is_file()
