"""`python -m benchmarks`, and its benchmark of the tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import tasks
from benchmarks.__main__ import BENCHMARKS, main
from statetrack.tasks import FAMILIES, Task
from tests.conftest import Command


def test_every_task_is_measured(
    benchmark: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "BATCH", 2)
    monkeypatch.setattr(tasks, "LENGTH", 32)
    file = tmp_path / "tasks.md"
    code, out, err = benchmark("tasks", "--rounds=1", "--out", file, "--json", "-")
    assert code == 0
    rows = json.loads(out)["tasks"]
    names = [name for family in FAMILIES for name in family.examples]
    assert {"random_dfa64_seed0", "S5 --tokens-per-element 5"} <= {row["task"] for row in rows}
    assert [row["task"] for row in rows][: len(names)] == names
    names = [row["task"] for row in rows]
    for row in rows:
        assert row["milliseconds"] > 0
        assert row["limit"] in (20, 40, 100)
        assert row["met"] is (row["milliseconds"] <= row["limit"])
        assert row["tokens per second"] > 0
    lines = file.read_text().splitlines()
    assert f"`python -m benchmarks tasks --rounds 1 --out {file}`" in lines[0]
    assert lines[1:3] == ["", "| task | ms | limit | met | million tokens/s |"]
    assert lines[3] == "| --- | --- | --- | --- | --- |"
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[4:]] == names
    assert {line.split(" | ")[3] for line in lines[4:]} <= {"yes", "no"}
    for name in names:
        assert name in err


def test_a_limit_that_is_not_met(benchmark: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "BATCH", 2)
    monkeypatch.setattr(tasks, "LENGTH", 32)
    asked = []

    def limit(task: Task) -> float:
        asked.append(task)
        return 1e-9 if task.name == "parity" else 1e9

    monkeypatch.setattr(tasks, "limit", limit)
    rows = json.loads(benchmark("tasks", "--rounds=1", "--json", "-").out)["tasks"]
    assert [row["task"] for row in rows if not row["met"]] == ["parity"]
    assert len(asked) == len(rows)  # once each: it makes the task's automaton


def test_mistakes(benchmark: Command) -> None:
    for flags, says in [
        (["--rounds=0"], "rounds must be at least 1; got 0"),
        (["--out=nowhere/x.md"], "nowhere/x.md: it must be a file in a writable folder"),
        (["--json=nowhere/x.json"], "nowhere/x.json: it must be a file in a writable folder"),
        (["extra"], "unexpected argument 'extra'"),
    ]:
        code, out, err = benchmark("tasks", *flags)
        assert (code, out) == (2, "")
        assert says in err


def test_the_list(benchmark: Command) -> None:
    for words in ([], ["--help"]):
        code, out, _ = benchmark(*words)
        assert code == 0
        assert all(f"  {name} " in out for name in BENCHMARKS)
    code, _, err = benchmark("nope")
    assert code == 2
    assert "unknown benchmark 'nope'" in err


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in ("hf", "language-models"):
        pytest.importorskip("transformers")
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: python -m benchmarks {name} [options]" in capsys.readouterr().out
