"""The versions that extras declare."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from statetrack.errors import UserError
from statetrack.lm import extra
from statetrack.requirements import declared, untested_version


def test_packages_of_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "datasets" else object())
    monkeypatch.setattr(
        metadata, "version", lambda name: {"transformers": "4.57.6"}.get(name, "999")
    )
    monkeypatch.setattr(extra, "declared", lambda name: {"transformers": [">=5.6.2", "<6"]})
    wrong = "datasets is missing, transformers is 4.57.6 (it must be >=5.6.2,<6)"
    with pytest.raises(UserError, match=re.escape(f"need the extra lm: {wrong}: pip install")):
        extra.require_lm()


def test_bounds_of_a_package_with_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['lm-eval[hf]<0.5,>=0.4.13; extra == "lm"', "numpy<3"]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    bounds = [">=0.4.13", "<0.5"]
    assert declared("lm") == {"lm-eval": bounds}
    monkeypatch.setattr(metadata, "version", lambda name: "0.5.1")
    assert untested_version("lm-eval", bounds) == (
        'lm-eval 0.5.1 is not tested, >=0.4.13,<0.5 is: pip install "lm-eval>=0.4.13,<0.5"'
    )


def test_every_package_of_the_extra_is_declared() -> None:
    assert {name.replace("-", "_") for name in declared("lm")} >= set(extra.PACKAGES)
    assert set(declared("gpu")) == {"flash-linear-attention", "triton"}


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        *(("3.5", True), ("3.5.0", True), ("3.9.0+git1234", True), ("3.10.1", True)),
        *(("3.4.9", False), ("2.9", False), ("4.0.0rc1", False), ("4", False), ("10.0", False)),
    ],
)
def test_versions_within_the_bounds(
    version: str, tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert (untested_version("triton", [">=3.5", "<4"]) is None) == tested


def test_a_package_under_another_name_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert untested_version("triton", [">=3.5", "<4"]) is None
