"""The report of run folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from statetrack.cli.main import main
from statetrack.errors import UserError
from statetrack.report.document import Document, Table
from statetrack.report.runs import run_names, runs_document
from statetrack.sweep.engine import write_sweep_file
from statetrack.training import RunConfig, TrainingConfig, train
from statetrack.training.evaluate import scaled
from tests.report.html import Page

from statetrack import DeltaNetConfig, MambaConfig, ModelConfig  # isort: skip
from statetrack.tasks import make_task  # isort: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    above = tmp_path_factory.mktemp("runs")
    task = make_task("parity")
    training = TrainingConfig(
        steps=4, batch_size=4, max_length=8, eval_every=2, eval_samples=8,
        eval_lengths=("9-12", "16"), log_every=1,
    )  # fmt: skip
    made = []
    for name, mixer in (("a", DeltaNetConfig(num_heads=2)), ("b", MambaConfig())):
        model = ModelConfig(vocab_size=3, hidden_size=8, num_layers=2, mixer=mixer)
        train(RunConfig(task, model, training), above / name)
        made.append(above / name)
    return made


def table(document: Document, name: str) -> Table:
    (found,) = (t for t in document.tables if t.name == name)
    return found


def test_two_runs(folders: list[Path]) -> None:
    document = runs_document(folders, samples=8)
    runs, scores, options = document.tables
    assert [row[:4] for row in runs.rows] == [
        ["a", "parity", "DeltaNet [0,1]", "trained"],
        ["b", "parity", "Mamba [0,1]", "trained"],
    ]
    assert [row[5] for row in runs.rows] == [4, 4]
    assert scores.columns[3:] == ["validation 9-12", "validation 16", "horizon"]
    assert ["model.mixer.name", "delta_net", "mamba"] in options.rows
    assert "training.lr" not in [row[0] for row in options.rows]  # it does not differ
    figures = {figure.name: figure for figure in document.figures}
    assert list(figures) == [
        "length", "loss", "training-accuracy", "spectrum", "validation-9-12", "validation-16-16",
    ]  # fmt: skip
    assert max(figures["length"].series[0].x) == 64  # 8 times the training length
    assert figures["length"].marks == ((8, "trained up to 8"),)
    assert figures["loss"].series[0].x == [1, 2, 3, 4]
    assert figures["validation-9-12"].series[0].x == [2, 4]
    assert figures["spectrum"].rows  # real eigenvalues
    assert all(0 <= x <= 1.001 for line in figures["spectrum"].series for x in line.x)
    assert set(document.configs) == {"a", "b"}


def test_the_majority_baseline_stands_where_it_beats_chance(tmp_path: Path) -> None:
    task = make_task("modular_arithmetic_brackets", modulus=3)
    training = TrainingConfig(
        steps=2, batch_size=4, max_length=8, eval_every=2, eval_samples=8, eval_lengths=("9-12",),
    )  # fmt: skip
    mixer = DeltaNetConfig(num_heads=2)
    model = ModelConfig(vocab_size=len(task.vocab), hidden_size=8, num_layers=1, mixer=mixer)
    train(RunConfig(task, model, training), tmp_path / "a")
    scores = table(runs_document([tmp_path / "a"], longest=0), "scores")
    at = scores.columns.index("majority baseline 9-12")
    expected = scaled(task.majority(9, 12), task.chance)
    assert scores.rows[0][at] == pytest.approx(expected)
    assert expected > 0.05


def test_one_run_without_a_curve(folders: list[Path]) -> None:
    document = runs_document(folders[:1], longest=0)
    assert "length" not in [figure.name for figure in document.figures]
    assert [t.name for t in document.tables] == ["runs", "scores"]
    assert table(document, "scores").rows[0][-1] is None


def test_a_run_that_is_named_twice(folders: list[Path]) -> None:
    again = folders[0].parent / "b" / ".." / "a"
    document = runs_document([folders[0], again], longest=0)
    assert [row[0] for row in document.tables[0].rows] == ["a"]


def test_a_run_without_a_checkpoint(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folders[0] / "config.json").read_text())
    assert "no checkpoint yet" in runs_document([tmp_path]).summary[0]


def test_damaged_metrics(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folders[0] / "config.json").read_text())
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kind": "train", "loss": "x"}\n')
    with pytest.raises(UserError, match=r"the train row of step 1 has no number loss"):
        runs_document([tmp_path])


def test_names() -> None:
    assert run_names([Path("x/a"), Path("y/b")]) == ["a", "b"]
    assert run_names([Path("x/a"), Path("y/a")]) == ["x/a", "y/a"]


def test_command(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    words = ["report", *map(str, folders), "--out", str(out), "--curve", "10", "--samples", "4"]
    assert main(words) == 0
    assert "index.html" in capsys.readouterr().out
    Page((out / "index.html").read_text()).check_stands_alone()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "PATHS is missing"),
        (["report", "nowhere"], "nowhere is neither a run folder nor a sweep"),
        (["report", "nowhere", "--samples=0"], "samples must be at least 1"),
        (["report", "nowhere", "--curve=-1"], "curve must be at least 0"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_no_report_into_another_run_or_sweep(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "sweep"
    write_sweep_file(other, "statetrack sweep")
    for out, holds in ((folders[1], "run"), (other, "sweep")):
        before = sorted(out.iterdir())
        assert main(["report", str(folders[0]), "--out", str(out)]) == 2
        assert f"{out} holds a {holds}; choose another folder" in capsys.readouterr().err
        assert sorted(out.iterdir()) == before
    inside = other / "jobs" / "report"
    assert main(["report", str(folders[0]), "--out", str(inside)]) == 2
    assert "is among the jobs of a sweep" in capsys.readouterr().err
    assert not inside.exists()


def test_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert f"{tmp_path} is neither a run folder nor a sweep" in capsys.readouterr().err
