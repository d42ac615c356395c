"""The package builds with a native library, and without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def build(folder: Path, **env: str) -> list[Path]:
    """Build a copy of the project that has a native source; the libraries that came out."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    (folder / "csrc").mkdir()
    (folder / "csrc" / "probe.cpp").write_text('extern "C" int probe() { return 1; }\n')
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build", "--build-base", "out"],
        cwd=folder,
        env={**os.environ, **env},
        check=True,
        capture_output=True,
    )
    built = list((folder / "out").rglob("statetrack"))
    assert any((path / "cli.py").exists() for path in built)
    return [file for path in built for file in path.glob("_native*")]


def test_a_missing_compiler_does_not_break_the_build(tmp_path: Path) -> None:
    assert build(tmp_path, CC="/no/such/compiler", CXX="/no/such/compiler") == []


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler on this machine")
def test_a_native_source_is_built(tmp_path: Path) -> None:
    assert len(build(tmp_path)) == 1


def test_torch_is_bounded_everywhere() -> None:
    """An open range would bring a newer torch with gigabytes of CUDA packages."""
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if '"torch' in line:
            assert "<" in line, line
