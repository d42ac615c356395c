"""The report of a user's own sweep."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statetrack.cli.main import main
from statetrack.errors import UserError
from statetrack.files import write_json
from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.models import ModelConfig
from statetrack.report.configs import distinguishing, flat, varying
from statetrack.report.document import Table
from statetrack.report.results import environment_facts
from statetrack.report.spread import Spread
from statetrack.report.sweeps import sweep_document
from statetrack.sweep.engine import write_sweep_file
from statetrack.sweep.job import Job
from statetrack.sweep.work import do_job
from statetrack.tasks import make_task
from statetrack.training import RunConfig, TrainingConfig
from tests.report.html import Page


def jobs() -> list[Job]:
    """Two models, two learning rates, two seeds."""
    found = []
    for mixer in (DeltaNetConfig(num_heads=2), MambaConfig()):
        model = ModelConfig(vocab_size=3, hidden_size=8, num_layers=1, mixer=mixer)
        for lr in (0.001, 0.01):
            for seed in (0, 1):
                training = TrainingConfig(
                    steps=2, batch_size=4, max_length=8, lr=lr, seed=seed, log_every=1
                )
                config = RunConfig(make_task("parity"), model, training)
                found.append(Job(f"parity-{mixer.name}", config, ("9-12",), curve=12, samples=8))
    return found


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with one real result, and others like it; one job failed, one is not done."""
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep_file(folder, "statetrack sweep --task parity")
    made: dict[str, Any] = {}
    for i, job in enumerate(jobs()):
        place = folder / "jobs" / job.folder
        place.mkdir(parents=True)
        write_json(place / "job.json", job.to_json())
        if i == 0:
            made = do_job(replace(job, spectrum=True), place)
            assert made["status"] == "done", made["error"]
        result = {**made, "key": job.key, "seed": job.config.training.seed, "cpu_seconds": 2.0}
        if i == 6:
            result |= {"status": "failed", "error": "the loss diverged", "trained": None}
        scored = made["trained"]["evaluations"]["9-12"] | {
            "scaled": i / 10,
            "score": 0.5 + i / 20,
        }
        if i != 6:
            result["trained"] = {**made["trained"], "evaluations": {"9-12": scored}}
        if i == 7:
            (place / "result.json").unlink(missing_ok=True)
        else:
            write_json(place / "result.json", result)
    return folder


def test_grid(sweep: Path) -> None:
    document = sweep_document(sweep)
    grid, failures = document.tables
    assert grid.columns[:3] == ["mixer", "lr", "runs"]  # the heads follow from the mixer
    rows = {(row[0], row[1]): row for row in grid.rows}
    best, median, interval = rows["delta_net", "0.01"][3:6]
    assert (best, median) == (0.3, pytest.approx(0.25))
    assert interval == Spread((0.2, 0.3)).interval_text
    assert rows["delta_net", "0.001"][2] == 2
    assert rows["mamba", "0.01"][2:6] == [0, None, None, None]  # neither run is done
    assert grid.columns[-1] == "CPU seconds a run"
    assert rows["mamba", "0.001"][-1] == 2
    assert failures.rows == [["parity-mamba", 0, "the loss diverged"]]
    assert document.summary[0] == "6 of 8 runs are done, 1 failed."
    assert "mamba, lr 0.001" in document.summary[1]


def test_the_majority_baseline_stands_where_it_beats_chance(sweep: Path, tmp_path: Path) -> None:
    assert "majority" not in "".join(sweep_document(sweep).tables[0].columns)  # of parity: 0

    shutil.copytree(sweep, tmp_path / "sweep")
    for path in (tmp_path / "sweep" / "jobs").glob("parity-delta_net-*/result.json"):
        result = json.loads(path.read_text())
        scored = result["trained"]["evaluations"]["9-12"]
        # one model is perfect: the chance of 1/4 follows from the others
        scored |= {"majority": 0.4, "score": 0.25 + 0.75 * scored["scaled"]}
        if result["seed"] == 0:
            scored |= {"scaled": 1.0, "score": 1.0}
        write_json(path, result)
    grid = sweep_document(tmp_path / "sweep").tables[0]
    column = grid.columns.index("majority baseline at 9-12")
    found = {(row[0], row[1]): row[column] for row in grid.rows}
    assert found["delta_net", "0.01"] == pytest.approx((0.4 - 0.25) / 0.75)
    assert found["mamba", "0.01"] is None  # nothing was evaluated
    assert "most frequent answer" in grid.note


def test_figures_and_facts(sweep: Path) -> None:
    document = sweep_document(sweep)
    figures = {figure.name: figure for figure in document.figures}
    assert list(figures) == ["length", "loss", "training-accuracy", "spectrum"]
    labels = [line.label for line in figures["length"].series if not line.faint]
    assert labels == ["delta_net, lr 0.001", "delta_net, lr 0.01", "mamba, lr 0.001"]
    assert document.facts["command"] == "statetrack sweep --task parity"
    assert document.facts["seeds"] == [0, 1]
    assert document.facts["CPU seconds"] == 14
    assert document.facts["device"] == "cpu"


def test_versions_that_differ_are_listed() -> None:
    """Results of before revisions were recorded have none."""
    old, new = {"torch": "2.6", "cores": 2}, {"torch": "2.6", "cores": 4, "revision": "abc"}
    results = [{"environment": e} for e in (old, new, new)] + [{"status": "failed"}]
    both = {"torch": "2.6", "cores": [2, 4], "revision": ["unknown", "abc"]}
    assert environment_facts(results) == both
    assert environment_facts(results[:1]) == old


def test_command(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(sweep), "--out", str(tmp_path)]) == 0
    assert "6 of 8 runs are done" in capsys.readouterr().out
    Page((tmp_path / "report" / "index.html").read_text()).check_stands_alone()
    assert main(["report", str(sweep), str(sweep)]) == 2
    assert "report on one sweep at a time" in capsys.readouterr().err


def test_the_report_of_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep_file(tmp_path, "statetrack reproduce", ["fig1"], {"scale": "smoke"})
    (tmp_path / "jobs").mkdir()
    assert main(["report", str(tmp_path)]) == 0  # before anything is done
    assert (tmp_path / "diagonal-parity" / "index.html").is_file()
    assert "index.html" in capsys.readouterr().out


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no jobs yet"):
        sweep_document(tmp_path)
    (tmp_path / "jobs" / "a-1").mkdir(parents=True)
    write_json(tmp_path / "jobs" / "a-1" / "job.json", {"schema": 99})
    with pytest.raises(UserError, match="does not have schema 1, which this version reads"):
        sweep_document(tmp_path)


def test_options() -> None:
    one = {"model": {"mixer": {"name": "a", "heads": 1}}, "lr": 0.1, "steps": 5}
    two = {"model": {"mixer": {"name": "b"}}, "lr": 0.1, "steps": 5}
    three = {"model": {"mixer": {"name": "b"}}, "lr": 0.2, "steps": 5}
    options = [flat(config) for config in (one, two, three)]
    assert varying(options) == ["model.mixer.name", "model.mixer.heads", "lr"]
    assert distinguishing(options) == ["model.mixer.name", "lr"]


def test_spread() -> None:
    spread = Spread((0.0, 0.5, 1.0))
    assert (spread.best, spread.median, spread.mean, spread.mad) == (1.0, 0.5, 0.5, 0.5)
    low, high = spread.interval or (0, 0)
    assert high - spread.mean == pytest.approx(4.3027 * 0.5 / 3**0.5)
    assert low == pytest.approx(1 - high)
    assert Spread((1.0,)).interval is None


def test_an_empty_cell_is_no_zero(sweep: Path) -> None:
    grid: Table = sweep_document(sweep).tables[0]
    assert [row[3] for row in grid.rows if row[2] == 0] == [None]
