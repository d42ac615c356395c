"""The package builds with its native library, and installs without a compiler."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

NEEDED = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
NO_COMPILER = {"CC": "/no/such/compiler", "CXX": "/no/such/compiler"}
PROBE = """
import torch, statetrack
from statetrack.ops import delta_rule
x = torch.ones(1, 3, 1, 2)
delta_rule(x, x, x, torch.ones(1, 3, 1), backend={backend!r})
print(statetrack.__file__)
"""


def build_wheel(folder: Path, **env: str) -> Path:
    """A wheel built from a copy of the project, with this environment's setuptools."""
    source = folder / "source"
    shutil.copytree(
        ROOT / "src",
        source / "src",
        ignore=shutil.ignore_patterns("*.egg-info", "*.so", "__pycache__"),
    )
    shutil.copytree(ROOT / "csrc", source / "csrc")
    for name in NEEDED:
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--wheel-dir", folder, "."], cwd=source, env={**os.environ, **env}, check=True
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel and this environment's other packages; its bin folder."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # only what lies there: the .pth file of an editable install is not followed
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    bin_folder = folder / "bin"
    subprocess.run(
        [bin_folder / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True
    )
    return bin_folder


def output(*command: str | Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd="/", env=env, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.wheel
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler on this machine")
def test_a_wheel_brings_the_native_kernels_to_any_python(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    programs = install(wheel, tmp_path / "env")
    used = output(programs / "python", "-c", PROBE.format(backend="native"))
    assert Path(used.strip()).is_relative_to(tmp_path / "env")
    assert "native on the CPU" in output(programs / "statetrack", "info", "--json", "-")


@pytest.mark.wheel
def test_without_a_compiler_the_torch_backend_serves(tmp_path: Path) -> None:
    programs = install(build_wheel(tmp_path, **NO_COMPILER), tmp_path / "env")
    output(programs / "python", "-c", PROBE.format(backend="auto"))
    info = output(programs / "statetrack", "info", "--json", "-")
    assert "not built: install a C++ compiler" in info
    assert '"default backend": "torch on the CPU; ' in info


def test_torch_is_bounded_everywhere() -> None:
    """An open range would bring a newer torch with gigabytes of CUDA packages."""
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if '"torch' in line:
            assert "<" in line, line
