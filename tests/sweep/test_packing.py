"""The results of a sweep in a few files, and back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from statetrack.errors import UserError
from statetrack.files import write_json
from statetrack.sweep.engine import read_results, run_sweep, write_sweep_file
from statetrack.sweep.job import Job
from statetrack.sweep.packing import pack, unpack
from statetrack.sweep.work import NO_MEASUREMENTS
from tests.conftest import Command
from tests.sweep.small import small_job

JOBS = [small_job(f"job {seed}", seed=seed, lengths=("12",)) for seed in (0, 1)]


def listed(results: object) -> list[Job]:
    return JOBS


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep_file(folder, "statetrack sweep ...")
    run_sweep(folder, listed, workers=1)
    return folder


def test_an_unpacked_sweep_has_the_same_results_and_goes_on(
    sweep: Path, tmp_path: Path, command: Command
) -> None:
    assert command("sweep", "pack", sweep, "--out", tmp_path / "packed").code == 0
    assert [f.name for f in sorted((tmp_path / "packed").iterdir())] == [
        "parity.jsonl.gz",
        "sweep.json",
    ]
    again = tmp_path / "again"
    result = command("sweep", "unpack", tmp_path / "packed", "--out", again)
    assert result.out.startswith("2 results added")
    assert read_results(again) == read_results(sweep)
    assert "command" not in (again / "sweep.json").read_text()  # it names another machine's folders
    events: list[str] = []
    run_sweep(again, listed, on_event=lambda event: events.append(event.kind))
    assert "start" not in events
    assert command("report", again).code == 0


def test_tasks_with_names_alike_share_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    for name, task in (("a", "regex:(0|1)*"), ("b", "regex:(0)1*")):
        job = folder / "jobs" / name
        job.mkdir(parents=True)
        write_json(job / "job.json", {})
        facts = dict.fromkeys((*NO_MEASUREMENTS, "name", "seed", "status", "error"))
        write_json(job / "result.json", {"schema": 1, "key": name, "task": task, **facts})
    write_json(folder / "sweep.json", {"schema": 1})
    assert pack(folder, tmp_path / "packed") == 2
    assert unpack(tmp_path / "packed", tmp_path / "again") == 2


def test_what_a_sweep_has_already_is_kept(sweep: Path, tmp_path: Path) -> None:
    pack(sweep, tmp_path / "packed")
    first, second = (tmp_path / name for name in ("first", "second"))
    assert unpack(tmp_path / "packed", first) == 2
    result = next(first.glob("jobs/*/result.json"))
    own = json.loads(result.read_text()) | {"seconds": -1.0}
    write_json(result, own)
    assert unpack(tmp_path / "packed", first) == 0
    assert json.loads(result.read_text()) == own
    pack(first, second)
    pack(first, tmp_path / "third")
    files = [(f / "parity.jsonl.gz").read_bytes() for f in (second, tmp_path / "third")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "cannot read"),
        (gzip.compress(b"{"), "cannot read"),
        (gzip.compress(b"{}\n"), "line 1: the keys are folder, job and result"),
        (
            gzip.compress(b'{"folder": "../x", "job": {}, "result": {}}'),
            "cannot be the name of a job's folder",
        ),
        (gzip.compress(b"[]" * 20)[:-4], "cannot read"),
    ],
    ids=["no gzip", "no JSON", "no keys", "outside", "cut short"],
)
def test_damaged_files(content: bytes, message: str, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    write_json(packed / "sweep.json", {})
    (packed / "parity.jsonl.gz").write_bytes(content)
    with pytest.raises(UserError, match=message):
        unpack(packed, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_what_is_no_sweep(sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        pack(tmp_path, tmp_path / "packed")
    with pytest.raises(UserError, match="holds a sweep"):
        pack(sweep, sweep)
    write_json(tmp_path / "sweep.json", {})
    with pytest.raises(UserError, match="no results yet"):
        pack(tmp_path, tmp_path / "packed")
    with pytest.raises(UserError, match="not a packed sweep"):
        unpack(sweep, tmp_path / "other")
