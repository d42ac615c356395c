"""One job in its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.reliability.processes import snapshot
from statetrack.compiler import compile
from statetrack.layers import DeltaNetConfig
from statetrack.models import ModelConfig
from statetrack.recipes.presets import demo_parity
from statetrack.sweep import measurements, work
from statetrack.sweep.job import THEOREM_6, Job
from statetrack.sweep.work import do_job, read_result
from statetrack.tasks import make_task
from statetrack.training import Progress, Run, RunConfig, TrainingConfig
from tests.sweep.small import small_job


class Cut(BaseException):
    """Ends a job as a signal would."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "job"
    path.mkdir()
    return path


def test_a_job_trains_evaluates_and_writes_its_result_last(folder: Path) -> None:
    options = {"eval_every": 2, "eval_lengths": ("4-8", "12"), "eval_samples": 8}
    job = small_job(lengths=("4-9", "12"), curve=300, spectrum=True, **options)
    result = do_job(job, folder)
    assert result == read_result(folder)
    assert (result["status"], result["error"], result["key"]) == ("done", None, job.key)
    assert (result["task"], result["mixer"], result["lr"]) == ("parity", "delta_net", 1e-3)
    assert (result["steps"], result["stopped"]) == (4, None)
    rows = Run.open(folder / "run").metrics()
    assert result["train_loss"] == [row["loss"] for row in rows if row["kind"] == "train"][-1]
    assert result["learning"]["step"] == [1, 2, 3, 4]
    assert [row["step"] for row in result["validation"]] == [2, 2, 4, 4]
    found = result["trained"]["evaluations"]
    assert set(found) == {"4-9", "12"}
    assert found["12"]["samples"] == 16
    traced = result["trained"]["curve"]
    assert len(traced["lengths"]) == len(traced["accuracy"]) <= 200
    assert (traced["lengths"][0], traced["lengths"][-1]) == (2, 300)
    assert set(range(2, 20)) <= set(traced["lengths"])
    (layer,) = result["spectrum"]["layers"]
    assert len(layer["real"]) == len(layer["imag"]) == 512
    assert 0 <= min(layer["real"]) < max(layer["real"]) <= 1
    assert result["hardened"] is result["harden"] is None
    assert result["cpu_seconds"] > 0
    assert set(result["environment"]) - {"revision"} == {
        "statetrack", "torch", "python", "machine", "cpu", "cores", "device",
    }  # fmt: skip


def test_a_deleted_result_is_measured_again_without_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting result.json measures a job again; the key does not depend on the code's version."""
    job = small_job(lengths=("12",))
    monkeypatch.setattr(work, "environment", lambda device="cpu": {"revision": "old"})
    old = do_job(job, folder)
    before = snapshot(folder / "run")
    (folder / "result.json").unlink()
    monkeypatch.setattr(work, "environment", lambda device="cpu": {"revision": "new"})
    new = do_job(job, folder)
    assert snapshot(folder / "run") == before
    assert (old["key"], old["trained"]) == (new["key"], new["trained"])
    assert (old["environment"], new["environment"]) == ({"revision": "old"}, {"revision": "new"})


def test_layers_without_transitions_have_no_spectrum(folder: Path) -> None:
    job = small_job(mixer="attention", spectrum=True)
    assert do_job(job, folder)["spectrum"] == {"layers": [None]}


def test_an_interrupted_job_resumes_and_gives_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "REPORT_EVERY", 0.0)  # every step is reported
    job = small_job(steps=8, checkpoint_every=2)

    def cut(progress: Progress) -> None:
        if progress.step > 2:
            raise Cut

    (tmp_path / "cut").mkdir()
    (tmp_path / "whole").mkdir()
    with pytest.raises(Cut):
        do_job(job, tmp_path / "cut", cut)
    assert not (tmp_path / "cut" / "result.json").exists()
    steps: list[int] = []
    do_job(job, tmp_path / "cut", lambda progress: steps.append(progress.step))
    assert steps[0] == 3  # after the checkpoint of step 2
    do_job(job, tmp_path / "whole")
    models = [Run.open(tmp_path / name / "run").model() for name in ("cut", "whole")]
    for one, other in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(one, other)


def test_a_job_cut_short_after_training_is_measured_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(lengths=("12",))

    def cut(*args: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(measurements, "_evaluations", cut)
        with pytest.raises(Cut):
            do_job(job, folder)
    steps: list[int] = []
    result = do_job(job, folder, lambda progress: steps.append(progress.step))
    assert not steps
    assert result["status"] == "done"


def test_an_error_of_the_job_is_its_result(folder: Path) -> None:
    result = do_job(small_job(lr=1e30, clip=None, schedule="constant", warmup=0.0), folder)
    assert result["status"] == "failed"
    assert "last good checkpoint" in result["error"]
    assert result["trained"] is None
    assert read_result(folder) == result
    # as written by a version that did not know two of the measurements
    older = {name: result[name] for name in result if name not in ("parameters", "validation")}
    (folder / "result.json").write_text(json.dumps(older))
    assert read_result(folder) == result | {"parameters": None, "validation": []}


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), OSError(28, "disk full")])
def test_a_defect_is_recorded_and_a_failure_of_the_machine_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(measurements, "_evaluations", fail)
    if isinstance(error, OSError):
        with pytest.raises(OSError, match="disk full"):
            do_job(small_job(), folder)
        assert not (folder / "result.json").exists()
    else:
        result = do_job(small_job(), folder)
        assert "ZeroDivisionError: a defect" in result["error"]


def test_early_stopping_is_recorded(folder: Path) -> None:
    rules = {"eval_every": 2, "eval_lengths": ("12",), "stop_below_score": 0.99, "log_every": 9}
    result = do_job(small_job(steps=6, stop_below_step=2, **rules), folder)
    assert (result["stopped"], result["steps"]) == ("hopeless", 2)
    assert result["train_loss"] is None  # no row of training was written before
    assert result["learning"]["step"] == []


def test_a_solved_job_is_hardened(folder: Path) -> None:
    config = demo_parity("delta_net", allow_neg_eigval=True)
    config = replace(config, training=replace(config.training, steps=200))
    job = Job("demo", config, lengths=("40",), samples=64, harden=True)
    result = do_job(job, folder)
    assert result["harden"]["changed"]
    assert result["harden"]["automaton"]["is_the_tasks"]
    assert result["hardened"]["evaluations"]["40"]["score"] == 1
    assert Run.open(folder / "hardened").checkpoint_steps() == [200]


def test_what_is_not_hardened_says_why(folder: Path) -> None:
    facts = do_job(small_job(harden=True, allow_neg_eigval=True), folder)["harden"]
    assert not facts["changed"]
    assert "has not learned parity" in facts["reason"]
    assert not (folder / "hardened").exists()


def test_a_model_that_cannot_be_hardened(folder: Path) -> None:
    result = do_job(small_job(harden=True, mixer="attention"), folder)
    assert result["status"] == "done"
    assert "cannot be hardened" in result["harden"]["reason"]


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_job_may_start_from_a_compiled_language(folder: Path, noise: float) -> None:
    task = make_task("Z3" if noise else "regex:(aa)*", **({} if noise else {"predict": "state"}))
    language = "Z3" if noise else "(aa)*"
    model = compile(language, "gated_deltaproduct").model.config
    model = replace(model, vocab_size=len(task.vocab))
    training = TrainingConfig(steps=1, batch_size=4, lr=0.0, min_lr=0.0, max_length=12)
    config = RunConfig(task, model, training)
    job = Job("compiled", config, ("12",), samples=16, compiled=language, noise=noise)
    result = do_job(job, folder)
    assert result["status"] == "done", result["error"]
    if not noise:
        assert result["trained"]["evaluations"]["12"]["score"] == 1
    exact = compile(language, "gated_deltaproduct").model
    started = Run.open(folder / "compiled").model()
    same = [
        torch.equal(a, b) for a, b in zip(exact.parameters(), started.parameters(), strict=True)
    ]
    assert all(same) == (noise == 0)
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert rows[0]["kind"] == "init"


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_job_may_start_from_theorem_6(folder: Path, noise: float) -> None:
    task = make_task("Z3")
    mixer = DeltaNetConfig(allow_neg_eigval=True, conv_size=0)
    training = TrainingConfig(steps=1, batch_size=4, lr=0.0, min_lr=0.0, max_length=8)
    config = RunConfig(task, ModelConfig(len(task.vocab), 32, 2, mixer), training)
    result = do_job(
        Job("six", config, ("40",), samples=16, compiled=THEOREM_6, noise=noise), folder
    )
    assert result["status"] == "done", result["error"]
    assert (result["trained"]["evaluations"]["40"]["score"] == 1) == (noise == 0)
