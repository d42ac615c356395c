"""The code of docs/hardening.md, run as it stands."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.hardening.test_harden_models import noisy_parity


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/hardening.md").read_text(), re.S)
    exec(code, {"model": noisy_parity()})
    out = capsys.readouterr().out
    assert out.startswith("Hardened: as good as it was")
    assert out.endswith("DeltaNet [-1,1]\n")
