"""What the demo trains, and what it makes of the results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from statetrack.recipes import demo as module
from statetrack.recipes.demo import Job, plan
from statetrack.training import RunConfig
from tests.recipes.results import demo


def parity(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if job.experiment == "parity"]


def test_the_jobs(tmp_path: Path) -> None:
    jobs = plan(2, tmp_path)
    assert [(job.title, job.config.training.seed) for job in jobs if job.experiment == "swaps"] == [
        ("DeltaNet [-1,1]", 6),
        ("DeltaNet [0,1]", 6),
    ]
    assert [(job.title, job.config.training.seed) for job in parity(jobs)] == [
        (f"{model} {span}", seed)
        for model in ("Mamba", "DeltaNet")
        for span in ("[0,1]", "[-1,1]")
        for seed in (6, 7, 8)
    ]
    assert len(jobs) == 14
    assert len({job.folder for job in jobs}) == 14
    assert {job.folder.parent for job in jobs} == {tmp_path / "runs"}


def test_seeds_of_different_demos_do_not_meet(tmp_path: Path) -> None:
    seeds = [{job.config.training.seed for job in plan(s, tmp_path)} for s in range(5)]
    assert sorted(seed for some in seeds for seed in some) == list(range(15))


def test_both_ranges_get_the_same_options(tmp_path: Path) -> None:
    def switched_off(config: RunConfig) -> RunConfig:
        mixer = replace(config.model.mixers[0], allow_neg_eigval=False)
        return replace(config, model=replace(config.model, mixer=mixer))

    jobs = plan(0, tmp_path)
    sides = [
        [job for job in jobs if job.config.model.mixers[0].allow_neg_eigval == allow]
        for allow in (False, True)
    ]
    assert len(sides[0]) == len(sides[1]) == 7
    for positive in sides[0]:
        twins = [
            job
            for job in sides[1]
            if switched_off(job.config) == positive.config
            and (job.longest, job.samples) == (positive.longest, positive.samples)
        ]
        assert len(twins) == 1, positive


def test_smoke_has_every_model_once(tmp_path: Path) -> None:
    jobs = plan(2, tmp_path, smoke=True)
    titles = {(job.experiment, job.title) for job in jobs}
    assert titles == {(job.experiment, job.title) for job in plan(2, tmp_path)}
    assert len(jobs) == len(titles) == 6
    assert {job.config.training.seed for job in jobs} == {6}
    assert {job.config.training.steps for job in jobs} == {4}


def test_score() -> None:
    lengths = np.arange(2, 1001)
    inside = (lengths >= 40) & (lengths <= 256)
    assert module._score("parity", lengths, inside.astype(float)) == 1
    assert module._score("parity", lengths, (~inside).astype(float)) == 0
    assert module._score("parity", lengths, lengths.astype(float)) == pytest.approx(148)
    assert module._score("swaps", lengths, lengths.astype(float)) == 128


def test_summary(tmp_path: Path) -> None:
    this = demo(tmp_path)
    summary = this.summary()
    assert summary["complete"] is True
    assert (summary["schema"], summary["seed"], summary["smoke"]) == (1, 1, False)
    assert [row["model"] for row in summary["parity"]] == [
        "Mamba [0,1]",
        "Mamba [-1,1]",
        "DeltaNet [0,1]",
        "DeltaNet [-1,1]",
    ]
    for row in summary["parity"]:
        assert row["scores"] == {"3": 0.25, "4": 1.0, "5": 0.5}
        assert (row["best"], row["median"]) == (1.0, 0.5)
    assert [(row["paper_best"], row["paper_median"]) for row in summary["parity"]] == [
        (0.0, 0.0),
        (1.0, 1.0),
        (0.017, 0.01),
        (1.0, 0.999),
    ]
    assert [(row["model"], row["sequence_accuracy"]) for row in summary["swaps"]] == [
        ("DeltaNet [0,1]", {"32": 1.0, "64": 0.25, "128": 0.25, "256": 0.25}),
        ("DeltaNet [-1,1]", {"32": 1.0, "64": 0.25, "128": 0.25, "256": 0.25}),
    ]
    assert len(summary["runs"]) == len(summary["configs"]) == 14
    for job in this.jobs:
        assert summary["configs"][f"runs/{job.folder.name}"]["schema"] == 2
    json.dumps(summary, allow_nan=False)


def test_summary_does_not_depend_on_the_order_of_completion(tmp_path: Path) -> None:
    this = demo(tmp_path)
    summary = this.summary()
    this.results = dict(reversed(this.results.items()))
    assert this.summary() == summary


def test_an_incomplete_summary(tmp_path: Path) -> None:
    """Two runs on swaps, three of Mamba [0,1] and one of Mamba [-1,1]."""
    summary = demo(tmp_path, done=6).summary()
    assert summary["complete"] is False
    assert [(row["model"], len(row["scores"])) for row in summary["parity"]] == [
        ("Mamba [0,1]", 3),
        ("Mamba [-1,1]", 1),
    ]
    assert summary["parity"][1]["best"] == summary["parity"][1]["median"] == 0.25
    assert len(summary["swaps"]) == 2


def test_an_empty_summary(tmp_path: Path) -> None:
    summary = demo(tmp_path, done=0).summary()
    assert summary["complete"] is False
    assert summary["parity"] == summary["swaps"] == summary["runs"] == []
