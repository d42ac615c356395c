"""Which library is loaded, at which level, and what happens if it is not the right one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.kernels.interface import STRUCTURES
from statetrack.ops import delta_rule
from tests.ops.common import run
from tests.ops.inputs import delta_rule_inputs

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(library.LIBRARY is None, reason=f"no library: {library.WHY_MISSING}"),
]


def info(**env: str) -> subprocess.CompletedProcess[str]:
    """`statetrack info` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "statetrack", "info", "--json", "-"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("level", library.LEVELS)
def test_the_environment_chooses_the_level(level):
    assert f'"native kernels": "{level} (of' in info(STATETRACK_NATIVE=level).stdout


def test_off_is_the_torch_backend():
    said = info(STATETRACK_NATIVE="off").stdout
    assert "switched off by STATETRACK_NATIVE=off" in said
    assert '"default backend": "torch on the CPU; ' in said


def test_a_level_that_is_not_there():
    done = info(STATETRACK_NATIVE="avx1024")
    assert done.returncode == 2
    assert "STATETRACK_NATIVE is 'avx1024'; here it can be:" in done.stderr
    assert "Traceback" not in done.stderr


def test_forcing_a_level_that_is_not_there():
    with (
        pytest.raises(UserError, match="no native kernels for 'avx1024' here"),
        library.forced("avx1024"),
    ):
        pass


def test_a_library_with_other_arguments_is_refused(monkeypatch):
    """Fields that were swapped or renamed since it was built change the hash of the header."""
    monkeypatch.setattr(library, "HASH", "0" * 64)
    missing, reason = library.load(library.PATH, "")
    assert missing is None
    monkeypatch.setattr(library, "WHY_MISSING", reason)
    monkeypatch.setattr(library, "_level", None)
    inputs = {name: x.float() for name, x in delta_rule_inputs(1, 5, 1, 2, 2).items()}
    for backend in ("auto", "native"):
        with pytest.raises(UserError, match="is not of this version of statetrack: install it"):
            delta_rule(**inputs, backend=backend)


def test_a_kernel_takes_its_own_structure(monkeypatch):
    monkeypatch.setattr(library, "_functions", {})
    with pytest.raises(TypeError, match="recurrence_forward takes Recurrence, not SLSTM"):
        library.call("recurrence_forward", STRUCTURES["SLSTM"]())


def test_131072_tokens():
    inputs = delta_rule_inputs(1, 131_072, 1, 4, 3)
    expected = run(delta_rule, inputs, torch.float64, backend="torch")
    actual = run(delta_rule, inputs, torch.float32, backend="native")
    for name, x in expected.items():
        assert torch.linalg.vector_norm(actual[name].double() - x) <= 1e-5 * x.norm(), name
