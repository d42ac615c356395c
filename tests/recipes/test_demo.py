"""The demo: what it trains, what it makes of results, and the command from end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statetrack.recipes.demo import list_models, make_recipe
from statetrack.recipes.overview import make_documents
from statetrack.recipes.recipe import Results, Settings
from statetrack.report.document import Document
from statetrack.report.render import write_document
from statetrack.sweep.job import Job
from statetrack.training import Run, RunConfig
from tests.recipes import made_up

DEMO = [sys.executable, "-m", "statetrack", "demo"]
LAPTOP = Settings("laptop")
MODELS = ["Mamba [0,1]", "Mamba [-1,1]", "DeltaNet [0,1]", "DeltaNet [-1,1]"]
SCORES = (0.25, 1.0, 0.5)  # of the three seeds of each model on parity


def jobs(seed: int, settings: Settings = LAPTOP) -> list[Job]:
    return make_recipe(seed).jobs(settings, Results())


def negative(job: Job) -> bool:
    return job.config.model.pattern[0].allow_neg_eigval


def result(job: Job) -> dict[str, Any]:
    """A run that is as good as SCORES says at every length, and exact once it is hardened."""
    score = SCORES[job.config.training.seed % 3]

    def measured(score: float) -> dict[str, Any]:
        found = made_up.result(job, score)["trained"]
        for evaluation in found["evaluations"].values():
            evaluation["sequence_accuracy"] = float(score == 1)
        return dict(found)

    reason = None if negative(job) else "made up"
    return {
        **made_up.result(job, score),
        "allow_neg_eigval": negative(job),
        "trained": measured(score),
        "hardened": measured(1.0) if negative(job) else None,
        "harden": {"changed": negative(job), "reason": reason},
    }


def document(done: int | None = None, seed: int = 1, settings: Settings = LAPTOP) -> Document:
    """The report of a demo of which the first `done` jobs are done, or all."""
    results = {job.key: result(job) for job in jobs(seed, settings)[:done]}
    return make_recipe(seed).document(settings, Results(results))


# -- what it trains -------------------------------------------------------------------------------


def test_the_jobs() -> None:
    models = list_models(2, LAPTOP)
    assert [(model.task, model.title) for model in models] == [
        ("swaps", "DeltaNet [-1,1]"),
        ("swaps", "DeltaNet [0,1]"),
        ("parity", "DeltaNet [-1,1]"),
        ("parity", "DeltaNet [0,1]"),
        ("parity", "Mamba [-1,1]"),
        ("parity", "Mamba [0,1]"),
    ]
    for model in models:
        seeds = [job.config.training.seed for job in model.jobs]
        assert seeds == ([6] if model.task == "swaps" else [6, 7, 8])
        assert model.longest == "100000"
        assert all(job.harden and job.samples_at(100_000) == 2 for job in model.jobs)
    assert len({job.key for job in jobs(2)}) == 14


def test_delta_net_on_parity_has_what_proved_robust() -> None:
    found = [job.config for job in jobs(0) if job.name.startswith("parity DeltaNet")]
    assert len(found) == 6
    for config in found:
        mixer = config.model.mixers[0]
        assert (mixer.beta_stretch, mixer.output_norm_eps) == (0.1, 1e-2)  # type: ignore[attr-defined]
        assert config.training.saturation == 0.05


def test_seeds_of_different_demos_do_not_meet() -> None:
    seeds = [{job.config.training.seed for job in jobs(s)} for s in range(5)]
    assert sorted(seed for some in seeds for seed in some) == list(range(15))


def test_both_ranges_get_the_same_options() -> None:
    def switched_off(config: RunConfig) -> RunConfig:
        mixer = replace(config.model.mixers[0], allow_neg_eigval=False)
        return replace(config, model=replace(config.model, mixer=mixer))

    sides = [[job for job in jobs(0) if negative(job) == side] for side in (False, True)]
    assert len(sides[0]) == len(sides[1]) == 7
    for positive, other in zip(*sides, strict=True):
        assert positive == replace(other, name=positive.name, config=switched_off(other.config))


# -- what it makes of the results -----------------------------------------------------------------


def test_the_verdict() -> None:
    assert document().summary == [
        "No mistake in 100,000 tokens: 7 of 7 models with eigenvalues in [-1,1] after hardening, "
        "2 of 7 as trained; 2 of 7 with [0,1]. They were trained on at most 40 tokens."
    ]


def test_tables() -> None:
    long, parity, swaps = document().tables
    assert long.title == (
        "Right answers at 100,000 tokens; trained on lengths up to 40 (parity), 32 (swaps)"
    )
    mean = pytest.approx(sum(SCORES) / 3)
    assert long.rows == [
        ["parity", "Mamba [0,1]", mean, "1 of 3", None, None],
        ["parity", "Mamba [-1,1]", mean, "1 of 3", 1.0, "3 of 3"],
        ["parity", "DeltaNet [0,1]", mean, "1 of 3", None, None],
        ["parity", "DeltaNet [-1,1]", mean, "1 of 3", 1.0, "3 of 3"],
        ["swaps", "DeltaNet [0,1]", 0.25, "0 of 1", None, None],
        ["swaps", "DeltaNet [-1,1]", 0.25, "0 of 1", 1.0, "1 of 1"],
    ]
    models = "Mamba [0,1] on parity, DeltaNet [0,1] on parity, DeltaNet [0,1] on swaps"
    assert f"Not hardened: {models}: made up." in long.note
    scores = [1.0, 0.5, "0.250 1.000 0.500"]
    assert parity.rows == [
        ["Mamba [0,1]", *scores, 0.0, 0.0],
        ["Mamba [-1,1]", *scores, 1.0, 1.0],
        ["DeltaNet [0,1]", *scores, 0.017, 0.010],
        ["DeltaNet [-1,1]", *scores, 1.0, 0.999],
    ]
    assert swaps.columns == ["model", "32", "64", "128", "256", "paper (Figure 4)"]
    assert [row[:2] for row in swaps.rows] == [["DeltaNet [0,1]", 0], ["DeltaNet [-1,1]", 0]]


def test_the_score_is_the_mean_over_lengths_40_to_256() -> None:
    (model,) = (m for m in list_models(0, LAPTOP) if (m.task, m.title) == ("parity", MODELS[0]))
    lengths = list(range(2, 1001))
    inside = [float(40 <= n <= 256) for n in lengths]
    for scaled, score in ((inside, 1), ([1 - y for y in inside], 0), (lengths, 148)):
        curve = {"lengths": lengths, "scaled": scaled}
        assert replace(model, results=[{"trained": {"curve": curve}}]).scores() == [score]


def test_the_figures() -> None:
    parity, swaps = document().figures
    assert parity.marks == ((40, "trained up to 40"),)
    assert swaps.marks == ((32, "trained up to 32"),)
    hardened = {"Mamba [-1,1], hardened", "DeltaNet [-1,1], hardened"}
    assert {line.label for line in parity.series if not line.faint} == {*MODELS, *hardened}
    assert {line.label for line in parity.series if line.dashed} == hardened
    assert sum(line.faint for line in parity.series) == 12  # the seeds
    assert len(swaps.series) == 3
    for line in (*parity.series, *swaps.series):
        assert list(line.x) == sorted(line.x)
        assert line.x[-1] == 100_000
        if line.dashed:
            assert set(line.y) == {1.0}


@pytest.mark.parametrize("done", [0, 1, 6])
def test_an_interrupted_demo_has_a_page(done: int, tmp_path: Path) -> None:
    """The first six runs are two on swaps, three of DeltaNet [-1,1] and one of DeltaNet [0,1]."""
    made = document(done)
    assert made.summary[0] == f"Interrupted: {done} of 14 runs have ended."
    write_document(made, tmp_path)
    assert f"Interrupted: {done} of 14" in (tmp_path / "index.html").read_text()
    assert len(made.configs) == done
    if done == 6:
        assert [row[2:4] for row in made.tables[0].rows[:2]] == [
            [0.25, "0 of 1"],
            [pytest.approx(sum(SCORES) / 3), "1 of 3"],
        ]


def test_a_run_that_failed_is_told() -> None:
    listed = jobs(0)
    results = {job.key: result(job) for job in listed[1:]}
    failed = {**result(listed[0]), "status": "failed", "error": "diverged", "trained": None}
    made = make_recipe(0).document(LAPTOP, Results({**results, listed[0].key: failed}))
    assert made.facts["failed"] == ["swaps DeltaNet [-1,1] s0: diverged"]
    assert "6 of 7 models with eigenvalues in [-1,1]" in made.summary[0]
    (shown,) = make_documents([make_recipe(0)], LAPTOP, Results({**results, failed["key"]: failed}))
    assert shown.summary[0] == "1 run failed; the facts below have the errors."


# -- the command ----------------------------------------------------------------------------------


def test_smoke_and_once_more(tmp_path: Path) -> None:
    """The second time nothing is trained, and the report is the same."""
    out = tmp_path / "demo"
    command = [*DEMO, "--smoke", "--seed", "3", "--out", str(out), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)  # which fails if there is anything else
    assert (output["folder"], output["failed"]) == (str(out), 0)
    made = output["documents"]["seed3"]
    assert "numbers mean nothing" in made["summary"][0]
    assert [row[0] for row in made["tables"][1]["rows"]] == MODELS
    assert made["facts"]["seeds"] == [9]
    assert made["facts"]["command"] == "statetrack demo --seed 3 --smoke"
    assert "has not learned parity" in made["tables"][0]["note"]
    assert "No mistake in 1,000 tokens" in done.stderr.replace("\n", " ")
    files = {path.name for path in (out / "seed3").iterdir()}
    assert {"index.html", "report.md", "document.json", "parity.png", "swaps.png"} <= files
    folders = sorted((out / "jobs").glob("*/run"))
    assert len(folders) == 6
    assert all(Run.open(folder).config.training.seed == 9 for folder in folders)
    events = (out / "events.jsonl").read_text()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(again.stdout) == output
    assert (out / "events.jsonl").read_text() == events


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_ctrl_c(tmp_path: Path) -> None:
    """Only the parent gets the signal; it ends its workers and leaves what it has, readable."""
    out = tmp_path / "demo"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*DEMO, "--out", str(out)], stdout=log, stderr=log, start_new_session=True
        )
    try:
        while process.poll() is None and not list(out.glob("jobs/*/run/config.json")):
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=300) == 130
        wait_for_the_end_of_group(process.pid)
    finally:
        if group_exists(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = (tmp_path / "log").read_text()
    assert "Cut short; the same command continues." in text
    assert "Traceback" not in text
    assert "Interrupted: 0 of 14 runs have ended." in (out / "seed0" / "index.html").read_text()


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_the_end_of_group(group: int) -> None:
    """Python's own helper process ends a moment after its parent; a forgotten worker never."""
    for _ in range(100):
        if not group_exists(group):
            return
        time.sleep(0.1)
    raise AssertionError("a process has survived")
