"""Fixtures of the tests of layers."""

from __future__ import annotations

import pytest

from statetrack.kernels.program import Program


@pytest.fixture
def runs(monkeypatch) -> list[Program]:
    """The programs that ran."""
    seen: list[Program] = []
    run = Program.run
    monkeypatch.setattr(Program, "run", lambda self, x: (seen.append(self), run(self, x))[1])
    return seen
