"""The command on tasks of all kinds: presets, figures, files, and the page on adding one."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from statetrack.config import to_dict
from statetrack.recipes import presets
from statetrack.tasks import make_task
from statetrack.tasks.exchange import import_task
from statetrack.training import Run, curve
from tests.conftest import ROOT, Command
from tests.training.small import FLAGS

# -- eval: curve and figure -----------------------------------------------------------------------

SMALL = ("--lengths", "5", "8-12", "--samples", "20")


def test_curve(command: Command, run_folder: Path) -> None:
    code, out, err = command("eval", run_folder, *SMALL, "--curve", "30", "--json", "-")
    assert code == 0
    data = json.loads(out)
    run = Run.open(run_folder)
    wanted = curve(run.model(), run.config.task, 30, samples=20)
    assert data["curve"] == wanted.to_json()
    assert data["curve"]["lengths"] == list(range(2, 31))
    assert data["curve"]["horizon"] is None
    assert len(data["results"]) == 2
    assert "Accuracy stays at 0.99 or above at no length (of 30)." in err


def test_a_curve_is_of_as_many_samples_as_asked_for(command: Command, run_folder: Path) -> None:
    args = ("--lengths=5", "--samples=300", "--curve=9", "--json=-")
    assert json.loads(command("eval", run_folder, *args).out)["curve"]["samples"] == 300


def test_accuracy_by_position(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an answer with several tokens: some in the table, all in the JSON."""
    flags = (*FLAGS, "--task=chomsky/reverse_string", "--out", tmp_path / "run")
    assert command("train", *flags).code == 0
    monkeypatch.setenv("COLUMNS", "80")
    args = ("--lengths", "3", "5-200", "--samples=20", "--json=-")
    code, out, err = command("eval", tmp_path / "run", *args)
    assert code == 0
    short, long = json.loads(out)["results"]
    assert len(short["position_accuracy"]) == 3
    assert 150 < len(long["position_accuracy"]) <= 200
    table = err[err.index("Accuracy at output 1 to") :].splitlines()
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in table]
    head, first, second = (row for row in rows if row)
    assert head[:3] == ["length", "1", "2"]
    assert int(head[-1]) == len(long["position_accuracy"])
    assert first == ["3", *(f"{n:.3f}" for n in short["position_accuracy"][:2]), *["-"] * 6]
    shown = [f"{long['position_accuracy'][int(n) - 1]:.3f}" for n in head[1:]]
    assert second == ["5-200", *shown]  # and nothing is broken into lines


def test_horizon(command: Command, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that knows: told to people and programs alike."""
    from tests.training.fakes import right_up_to

    model = right_up_to(Run.open(run_folder).config.task, 17)
    monkeypatch.setattr(Run, "model", lambda self, **where: model)
    code, out, err = command("eval", run_folder, *SMALL, "--curve", "30", "--json", "-")
    assert code == 0
    assert json.loads(out)["curve"]["horizon"] == 17
    assert "Accuracy stays at 0.99 or above to length 17 (of 30)." in err


def test_no_curve_unless_asked_for(command: Command, run_folder: Path) -> None:
    code, out, err = command("eval", run_folder, *SMALL, "--json", "-")
    assert code == 0
    assert "curve" not in json.loads(out)
    assert "0.99" not in err


@pytest.mark.parametrize("more", [[], ["--curve=30"]], ids=["points", "curve"])
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_figure(
    ending: str, more: list[str], command: Command, run_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / f"figure.{ending}"
    assert command("eval", run_folder, *SMALL, *more, "--figure", file).code == 0
    data = file.read_bytes()
    if ending == "svg":
        assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
    else:
        first, last = {"png": (b"\x89PNG\r\n\x1a\n", b"IEND"), "pdf": (b"%PDF-", b"%%EOF")}[ending]
        assert data.startswith(first)
        assert last in data[-16:]
    assert len(data) > 2000


# -- tasks export ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["parity", "S3", "chomsky/binary_addition", "board"])
def test_export_jsonl(name: str, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    args = ("--out", file, "--n", "30", "--min-length=5", "--max-length=9")
    code, out, err = command("tasks", "export", name, *args)
    assert (code, err) == (0, "")
    assert out == f"30 sequences of {name} in {file}\n"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 30
    task = make_task(name)
    assert {row["length"] for row in rows} == set(range(5, 10))
    for row in rows:
        assert list(row) == ["length", "input", "target"]
        assert len(row["input"]) == len(row["target"]) == task.input_size(row["length"])
        assert task.solve(np.array([row["input"]])).tolist() == [row["target"]]
    assert import_task(task, file).lengths.tolist() == [row["length"] for row in rows]


def test_export_csv(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    args = ("--format=csv", "--n=20", "--min-length=4", "--max-length=6", "--data-seed=3")
    assert command("tasks", "export", "Z5", "--out", file, *args).code == 0
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 20
    for row in rows:
        assert list(row) == ["seed", "input", "target"]
        elements = [int(n) for n in row["input"].split()]
        assert 4 <= len(elements) <= 6
        sums = [sum(elements[: i + 1]) % 5 for i in range(len(elements))]
        assert [int(n) for n in row["target"].split()] == sums
        assert row["seed"] == "3"
    import_task(make_task("Z5"), file)


def test_exports_differ_by_split_and_seed_alone(command: Command, tmp_path: Path) -> None:
    def text(*args: str) -> str:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        assert command("tasks", "export", "parity", "--n=8", "--out", file, *args).code == 0
        return file.read_text()

    texts = [text(), text("--split=test", "--data-seed=0", "--min-length=40", "--max-length=256")]
    assert texts[0] == texts[1]
    others = [text("--split=train"), text("--split=validation"), text("--data-seed=1")]
    assert len({*texts, *others}) == 4


def test_export_has_a_help_and_a_file_of_its_own(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("tasks", "export", "--help")
    assert code == 0
    assert "usage: statetrack tasks export" in out
    assert command("tasks", "export", "chomsky/even_pairs", "--n=3").code == 0
    assert len((tmp_path / "chomsky_even_pairs-test.jsonl").read_text().splitlines()) == 3


def test_export_with_the_tasks_options(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    args = ("--n=5", "--min-length=8", "--max-length=8", "--generators", "1", "2", "--json", "-")
    code, out, err = command(
        "tasks", "export", "--out", file, "S3", "--tokens-per-element=2", *args
    )
    assert (code, err) == (0, f"5 sequences of S3 in {file}\n")
    task = make_task("S3", tokens_per_element=2, generators=[1, 2])
    data = {"file": str(file), "format": "jsonl", "sequences": 5}
    assert json.loads(out) == {**data, "task": to_dict(task)}
    assert set(import_task(task, file).tokens[:, 1::2].ravel().tolist()) == {1, 2}
    assert set(import_task(task, file).tokens[:, 2::2].ravel().tolist()) == {6}  # the filler


def test_csv_of_the_last_answers_only(command: Command, tmp_path: Path) -> None:
    """Ragged, as the default lengths are; nothing in it stands for "not asked"."""
    file = tmp_path / "data.csv"
    code, out, _ = command("tasks", "export", "Z5", "--supervision=last", "--n=9", "--out", file)
    assert code == 0
    assert "csv has a target for every token: supervision is dense" in out
    assert "-1" not in file.read_text()
    assert command("tasks", "import", file, "--task=Z5", "--supervision=last").code == 0


def test_import(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    args = ("--n=30", "--min-length=5", "--max-length=9", "--supervision=dense")
    assert command("tasks", "export", "parity", "--out", file, *args).code == 0
    words = ("tasks", "import", file, "--task=parity", "--supervision=dense")
    code, out, err = command(*words)
    sizes = [len(json.loads(line)["input"]) for line in file.read_text().splitlines()]
    assert (code, err) == (0, "")
    assert out == (
        f"{file}: 30 sequences of lengths 5-9, {sum(sizes)} tokens\n"
        "30 of 30 have the targets of parity\n"
    )
    code, out, _ = command(*words, "--json", "-")
    assert json.loads(out) == {
        "file": str(file),
        "task": to_dict(make_task("parity", supervision="dense")),
        "sequences": 30,
        "tokens": sum(sizes),
        "min_length": 5,
        "max_length": 9,
        "agree": 30,
        "disagree": [],
    }


@pytest.mark.parametrize("words", [(), ("export",)])
def test_a_flag_that_there_is_not_is_named(words: tuple[str, ...], command: Command) -> None:
    """Its value is not taken for a task."""
    code, _, err = command("tasks", *words, "--device", "cpu")
    assert code == 2
    assert "unknown option --device; options of a task come after its name" in err
    assert "unknown task 'cpu'" in command("tasks", *words, "cpu", "--device", "x").err


def test_import_with_a_task_given_twice(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "Z5.csv"
    file.write_text("seed,input,target\n0,3 4 1,3 2 3\n")
    code, _, err = command("tasks", "import", file, "--task", "-inf", "--task=nope")
    assert code == 2
    assert "unknown task 'nope'" in err


def test_import_of_wrong_targets(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "Z5.csv"
    file.write_text("seed,input,target\n0,3 4 1,3 2 3\n0,2 2 2,2 4 0\n0,1 1 1,1 2 4\n")
    code, out, err = command("tasks", "import", file, "--task", "Z5", "--json", "-")
    assert code == 2
    data = json.loads(out)
    assert (data["agree"], data["disagree"]) == (1, [2, 3])
    assert "1 of 3 have the targets of Z5\n" in err
    assert err.endswith(f"error: {file}, sequence 2: the target is not that of Z5\n")


def test_a_task_shown_with_options(command: Command) -> None:
    words = ("tasks", "S3", "--tokens-per-element=2", "--filler", "repeat", "--json", "-")
    data = json.loads(command(*words).out)
    assert (data["tokens_per_element"], data["filler"]) == (2, "repeat")
    shown = data["example"]["input"]
    assert shown[1:-1:2] == shown[2::2]
    code, out, _ = command("tasks", "S3", "--help")
    assert code == 0
    assert "--tokens-per-element" in out


# -- presets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "task", "mixer"),
    [("demo", "parity", "mamba"), ("demo", "S5_only_swaps", "delta_net"),
     ("paper", "parity", "delta_net"), ("paper", "modular_arithmetic", "mamba")],
)  # fmt: skip
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_preset(
    preset: str, task: str, mixer: str, switch: bool, command: Command, tmp_path: Path
) -> None:
    names = ("--preset", preset, "--task", task, "--mixer", mixer)
    short = ["--steps=2", "--batch-size=2", "--eval-samples=2"]
    more = [*short, *(["--allow-neg-eigval"] if switch else [])]
    assert command("train", *names, *more, "--out", tmp_path / "run").code == 0
    wanted = presets.PRESETS[preset](mixer, task, allow_neg_eigval=switch)
    training = replace(wanted.training, steps=2, batch_size=2, eval_samples=2)
    run = Run.open(tmp_path / "run")
    assert run.config == replace(wanted, training=training)
    assert run.metrics()[-1]["step"] == 2


def test_flags_override_a_preset(command: Command, tmp_path: Path) -> None:
    args = ("--steps=2", "--batch-size=3", "--lr=0.5", "--hidden-size=8", "--supervision=last")
    out = tmp_path / "run"
    assert command("train", "--preset=demo", "--mixer=mamba", *args, "--out", out).code == 0
    config = Run.open(out).config
    assert (config.task.name, config.task.supervision) == ("parity", "last")  # type: ignore[attr-defined]
    assert (config.training.lr, config.training.batch_size) == (0.5, 3)
    assert (config.model.hidden_size, config.model.mlp) == (8, "none")
    assert config.training.warmup == 0.05  # the preset's


def test_preset_and_config(command: Command, run_folder: Path, tmp_path: Path) -> None:
    both = ("--preset=demo", "--config", run_folder / "config.json", "--out", tmp_path / "new")
    code, out, err = command("train", *both)
    assert (code, out) == (2, "")
    assert err == "statetrack: error: give --preset or --config, not both\n"
    assert not (tmp_path / "new").exists()


def test_preset_and_resume(command: Command, run_folder: Path) -> None:
    """As with --config: a run is resumed with what it has."""
    before = Run.open(run_folder).config
    code, _, err = command("train", "--preset=demo", "--resume", run_folder)
    assert code == 2, err
    assert Run.open(run_folder).config == before


# -- tasks with a name that says all --------------------------------------------------------------


def trained(command: Command, folder: Path, *args: str) -> Any:
    """A run of 4 steps and its evaluation."""
    result = command("train", *FLAGS, "--max-length=12", *args, "--out", folder)
    assert result.code == 0, result.err
    assert command("eval", folder, "--lengths=6", "--samples=4", "--curve=8").code == 0
    return Run.open(folder).config.task


def test_regex(command: Command, tmp_path: Path) -> None:
    task = trained(command, tmp_path / "run", "--task", "regex:(ab)*")
    assert task.name == "regex:(ab)*"
    assert task == make_task("regex:(ab)*")


def test_the_default_folder_of_a_regex_and_a_file(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names hold what a path cannot, or should not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "group.json").write_text('{"table": [[0, 1], [1, 0]]}')
    for task in ("regex:(ab)*", "group:files/group.json", "chomsky/even_pairs"):
        result = command("train", *FLAGS, "--task", task)
        assert result.code == 0, result.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["files", "runs"]
    found = list((tmp_path / "runs").rglob("config.json"))
    assert len(found) == 3
    assert {file.parent.parent for file in found} == {tmp_path / "runs"}


def test_group_of_a_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "group.json"
    file.write_text('{"generators": ["(1 2)", "(1 2 3)"]}')
    task = trained(command, tmp_path / "run", "--task", f"group:{file}")
    assert task.name == f"group:{file}"
    assert task.group.order == 6


def test_generators(command: Command, tmp_path: Path) -> None:
    task = trained(command, tmp_path / "run", "--task=S3", "--generators", "1", "2")
    assert task.generators == (1, 2)
    assert task.inputs.tolist() == [1, 2]


def test_generators_that_do_not_generate(command: Command, tmp_path: Path) -> None:
    args = ("--task=A4_x_Z5", "--generators", "0", "--out", tmp_path / "run")
    code, out, err = command("train", *FLAGS, *args)
    assert (code, out) == (2, "")
    message = "(0,) do not generate A4_x_Z5: they reach 1 of 60 elements"
    assert err == f"statetrack: error: {message}\n"
    assert not (tmp_path / "run").exists()


# -- docs/tasks.md --------------------------------------------------------------------------------


def test_add_a_task_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tasks.md").read_text().partition("## Add a task")[2]
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (place,) = re.findall(r"Saved as `src/([^`]+)`", page)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "statetrack", tmp_path / "statetrack", ignore=ignored)
    assert not (tmp_path / place).exists()
    (tmp_path / place).write_text(code)

    def statetrack(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "statetrack", *args],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    data = json.loads(statetrack("tasks", "majority", "--json", "-"))
    assert (data["name"], data["metric"]) == ("majority", "answer")
    assert data["vocab"] == ["PAD", "0", "1"]
    bits = data["example"]["input"]
    answer = "1" if bits.count("1") > bits.count("0") else "0"
    assert data["example"]["target"] == ["."] * (len(bits) - 1) + [answer]
    small = [flag for flag in FLAGS if not flag.startswith("--steps")]
    statetrack("train", "--task", "majority", *small, "--steps=2", "--out=run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["task"]["name"] == "majority"
    assert Path(tmp_path / "run" / "metrics.jsonl").read_text().count('"kind"') >= 2
