"""Jobs on another device than the CPU, simulated: see tests/simulated_device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from statetrack.config import changed, to_dict
from statetrack.report.sweeps import sweep_document
from statetrack.sweep import engine
from statetrack.sweep.environment import environment
from statetrack.sweep.job import Job
from statetrack.sweep.pool import cores, run_all
from statetrack.sweep.work import do_job
from statetrack.training import Run
from tests.conftest import Command
from tests.simulated_device import NAME, simulated_device
from tests.sweep import jobs
from tests.sweep.small import small_job
from tests.training.small import FLAGS


def test_the_device_is_no_part_of_the_key() -> None:
    job = small_job()
    training = replace(job.config.training, compile=True)
    for other in (
        job.on("cuda"),
        job.on("cpu").on("auto"),
        replace(job, config=replace(job.config, training=training)),
    ):
        assert other.key == job.key
        assert other == job
        assert changed(other) == changed(job)
    assert job.on("cuda").device == "cuda"
    assert to_dict(job.on("cuda"))["config"]["training"]["device"] == "cuda"
    assert "device" not in to_dict(job)["config"]["training"]
    assert replace(job, samples=17).key != job.key


def test_a_job_on_the_device(tmp_path: Path) -> None:
    job = small_job(lengths=("4-9",), curve=20, spectrum=True, harden=True)
    expected = do_job(job, tmp_path / "cpu")
    with simulated_device():
        result = do_job(job.on(NAME), tmp_path / NAME)
        assert Run.open(tmp_path / NAME / "run").devices == [NAME]
    assert result["status"] == "done", result["error"]
    assert result["environment"]["device"] == NAME
    assert expected["environment"]["device"] == "cpu"
    assert result["key"] == expected["key"]
    for name in ("trained", "steps"):
        assert result[name] == expected[name]
    assert result["harden"]["reason"] == expected["harden"]["reason"]
    for part in ("real", "imag"):
        (found,), (right,) = (r["spectrum"]["layers"] for r in (result, expected))
        assert found[part] == pytest.approx(right[part], abs=1e-4)


def test_a_job_whose_device_is_not_there_fails(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = do_job(small_job().on("cuda"), tmp_path)
    assert result["status"] == "failed"
    assert "there is no device cuda here" in result["error"]
    assert result["environment"]["device"] == "cuda (not available)"


def test_the_environment_names_the_device() -> None:
    assert environment()["device"] == "cpu"


def test_one_worker_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job()
    assert engine.workers_for([job]) == cores()
    monkeypatch.setattr(engine, "count_gpus", lambda: 3)
    assert engine.workers_for([job]) == engine.workers_for([job.on("cuda")]) == 3
    assert engine.workers_for([job.on("cpu")]) == cores()


def test_workers_have_numbers_of_their_own() -> None:
    """By which they choose a GPU."""
    events = run_all(jobs.preferred_gpu, [0] * 4, 2)
    assert {event.value for event in events if event.kind == "done"} == {0, 1}


def test_a_sweep_on_the_device(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "sweep"
    words = ("sweep", *FLAGS, "--seed", "0,1", "--samples", "4", "--jobs", "1", "--out", out)
    assert command(*words, "--device", "cpu").code == 0
    assert command(*words).out.startswith("2 runs, 0 to do")
    assert "device" not in str(sweep_document(out).tables[0].columns)
    refused = command(*words, "--device", "cpu,cuda")
    assert refused.code == 2
    assert "device must be" in refused.err


def test_recipes_run_on_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from statetrack.cli import reproduce
    from statetrack.recipes.recipe import Settings, find_recipe
    from statetrack.terminal import make_console

    listed: list[Job] = []

    def run_sweep(folder: Path, every, **options) -> dict:
        listed.extend(every({}))
        return {}

    monkeypatch.setattr(engine, "run_sweep", run_sweep)
    recipe = find_recipe("diagonal-parity")
    (tmp_path / "jobs").mkdir()
    reproduce.run_recipes(
        make_console(None), [recipe], Settings("smoke"), tmp_path, 1, None, "cuda"
    )
    assert {job.device for job in listed} == {"cuda"}
