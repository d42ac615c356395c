"""The versions and the hardware that a result records."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from statetrack.sweep import environment as module


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the source checkout."""
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    user = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *user, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_revision_of_a_checkout(checkout: Path) -> None:
    (checkout / "file").write_text("1")
    git(checkout, "init")
    git(checkout, "add", "file")
    git(checkout, "commit", "-m", "one")
    git(checkout, "tag", "-m", "v1", "v1")
    (found,) = module._revision().values()
    assert git(checkout, "rev-parse", "HEAD").startswith(found)
    (checkout / "file").write_text("2")
    assert module._revision() == {"revision": f"{found}-dirty"}


def test_no_checkout_or_no_git_has_no_revision(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module._revision() == {}
    (checkout / ".git").mkdir()  # which git does not accept
    assert module._revision() == {}
    monkeypatch.setenv("PATH", str(checkout))
    assert module._revision() == {}
