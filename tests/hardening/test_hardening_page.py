"""The code of docs/hardening.md, run as it stands."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.hardening.test_harden import noisy_parity


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/hardening.md").read_text(), re.S)
    exec(code, {"model": noisy_parity()})
    out = capsys.readouterr().out
    assert out.startswith("Hardened: the model is as good at its training lengths as before")
    assert out.endswith("DeltaNet [-1,1]\n")
