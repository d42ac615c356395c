"""`python -m benchmarks tokenising`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.timing import WrongResultError


def test_both_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    for i in range(60):
        (tmp_path / "source" / f"{i}.py").write_text(f"def function_{i}(x):\n    return x + {i}\n")
    words = ["tokenising", "--source", str(tmp_path / "source"), "--vocab-size=300", "--rounds=2"]
    page = tmp_path / "out.md"
    assert main([*words, "--json", str(tmp_path / "out.json"), "--out", str(page)]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["documents"] == 60
    assert found["ratio"] == found["seconds"]["statetrack"] / found["seconds"]["tokenizers"]
    assert f"Ratio {found['ratio']:.2f};" in page.read_text()
    # a comparison of other documents would mean nothing
    monkeypatch.setattr("statetrack.lm.data.sources.documents", lambda config: [])
    with pytest.raises(WrongResultError):
        main(words)
