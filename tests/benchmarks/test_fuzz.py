"""Bad inputs: those of `make fuzz`, but fewer; and the harness finds what it is to find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.reliability import fuzz
from benchmarks.reliability.bad_inputs import Case
from tests.conftest import ROOT

CASES = 200


def test_bad_inputs(tmp_path: Path) -> None:
    out = tmp_path / "fuzz.json"
    module = [sys.executable, "-m", "benchmarks", "fuzz"]
    command = [*module, f"--cases={CASES}", "--seed=1", f"--json={out}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text())
    assert (told["cases"], told["failures"]) == (CASES, [])


def test_cases_are_different_and_the_same_for_a_seed() -> None:
    found = fuzz.generate(60, 3)
    assert len(set(found)) == len(found) == 60
    assert {case.kind for case in found} == {"command", "file", "call"}
    assert fuzz.generate(60, 3) == found


def test_a_traceback_is_found() -> None:
    assert fuzz.attempt(Case("command", ("info",))).problem == ""
    verdict = fuzz.attempt(Case("call", call="st.explain", wrong=(("nonsense", "5"),)))
    assert verdict.problem == "traceback"


def test_a_harmed_file_is_found() -> None:
    before = {"notes.txt": b"years", "run/config.json": b"{}", "out/x": b""}
    case = Case("command", ("eval", "run", "--json", "notes.txt"))
    assert fuzz.harmed(case, before, {**before, "notes.txt": b"", "out/x": b"1"}) == []
    assert fuzz.harmed(case, before, {**before, "run/config.json": b""}) == ["run/config.json"]
    assert fuzz.harmed(case, before, {"notes.txt": b"years", "out/x": b""}) == ["run/config.json"]


def test_files_are_damaged(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for damage, expected in [
        (("cut", 3), b'{"a'),
        (("flip", 0, 0), b'z"a": 1}'),
        (("bytes", b"\0"), b"\0"),
        (("json", 0, 0), b'{"a": null}'),
        (("drop", 0), b"{}"),
        (("add", 0, "b"), b'{"a": 1, "b": 1}'),
    ]:
        file.write_bytes(b'{"a": 1}')
        fuzz.harm(file, damage)
        assert file.read_bytes() == expected
    fuzz.harm(file, ("folder",))
    assert file.is_dir()
    fuzz.harm(file, ("missing",))
    assert not file.exists()
