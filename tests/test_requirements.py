"""The versions that extras declare."""

from __future__ import annotations

from importlib import metadata

import pytest

from statetrack.errors import UserError
from statetrack.lm import extra
from statetrack.requirements import declared


def test_packages_of_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "datasets" else object())
    monkeypatch.setattr(
        metadata, "version", lambda name: {"transformers": "4.57.6"}.get(name, "999")
    )
    monkeypatch.setattr(extra, "declared", lambda name: {"transformers": [">=5.6.2", "<6"]})
    says = r'need datasets, transformers>=5\.6\.2,<6: pip install "statetrack\[lm\]"'
    with pytest.raises(UserError, match=says):
        extra.require_lm()


def test_every_package_of_the_extra_is_declared() -> None:
    assert {name.replace("-", "_") for name in declared("lm")} >= set(extra.PACKAGES)
