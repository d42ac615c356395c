"""The files beside the code: workflows, issue forms, the citation, pre-commit, requirements."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import ROOT

GITHUB = ROOT / ".github"
SCHEMAS = {
    "github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "github-issue-forms": [
        GITHUB / "ISSUE_TEMPLATE" / f"{kind}.yml" for kind in ("bug", "feature")
    ],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_schema(schema: str) -> None:
    """The schemas come with check-jsonschema: nothing is downloaded."""
    program = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*program, *SCHEMAS[schema]], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_targets_of_the_workflows_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    files = [*SCHEMAS["github-workflows"], GITHUB / "PULL_REQUEST_TEMPLATE.md"]
    named = {name for file in files for name in re.findall(r"\bmake ([\w-]+)", file.read_text())}
    assert named >= {"test", "docs"}
    assert [name for name in named if f"\n{name}:" not in makefile] == []


def test_the_citation_is_of_this_version() -> None:
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{version}}}" in (ROOT / "docs" / "cite.md").read_text()


def test_the_lowest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / "requirements" / "lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    for requirement in PROJECT["dependencies"]:
        name, bound = re.fullmatch(r"([\w-]+)>=([\d.]+),<.*", requirement).groups()  # type: ignore[union-attr]
        if name != "torch":
            assert f"{pinned[name]}.".startswith(f"{bound}."), name
