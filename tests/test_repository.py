"""The files beside the code: workflows, issue forms, the citation, pre-commit, requirements."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

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
    assert named >= {"test", "docs", "cross", "browser"}
    assert [name for name in named if f"\n{name}:" not in makefile] == []


def run_script(script: Path, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the programs of one folder, and the tools that every script needs."""
    for tool in ("dirname", "bash"):
        (path / tool).symlink_to(str(shutil.which(tool)))
    plain = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [str(path / "bash"), str(script), sys.executable]
    return subprocess.run(
        command, env={**plain, "PATH": str(path), **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
@pytest.mark.parametrize(("target", "package"), [("browser", "chromium"), ("cross", "clang")])
def test_a_missing_tool_is_named_and_fails_in_ci(
    target: str, package: str, ci: str, code: int, tmp_path: Path
) -> None:
    done = run_script(ROOT / "tests" / target / "run.sh", tmp_path, CI=ci)
    assert f"make {target} needs {package}" in done.stderr
    assert f"apt-get install {package}" in done.stderr
    assert done.returncode == code


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(("user", "ci"), [(0, "1"), (1000, "")])
def test_ci_run_requires_the_tools_that_root_may_install(
    user: int, ci: str, tmp_path: Path
) -> None:
    programs = {
        "id": f"echo {user}",
        "apt-get": "exit 100",  # as without a network
        "make": 'echo "$1 CI=$CI"',
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    done = run_script(ROOT / ".ci" / "run", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [f"cross CI={ci}", f"browser CI={ci}"]


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
