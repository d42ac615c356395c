"""Jobs of a sweep that pretrain, and the recipe that is made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statetrack.errors import UserError
from statetrack.lm.data.build import build_data
from statetrack.lm.data.config import DataConfig
from statetrack.lm.harness.pack import write_pack
from statetrack.lm.pretraining.presets import preset
from statetrack.lm.pretraining_job import PretrainingJob
from statetrack.recipes import language_models
from statetrack.recipes.recipe import Results, Settings
from statetrack.sweep.status import result_text
from statetrack.sweep.work import do_job

SETTINGS = Settings("laptop", texts=("prose.txt",))


def small_job(text: Path, **options: Any) -> PretrainingJob:
    config = preset("tiny", "delta_net")
    model = replace(config.model, hidden_size=32, num_layers=1).with_mixers("mamba")
    config = replace(
        config, model=model, steps=2, warmup=1, log_every=1, checkpoint_every=1, batch_size=2,
        context_length=16, validation_batches=1,
    )  # fmt: skip
    data = DataConfig(source=(str(text),), vocab_size=270, suffix=(".txt",))
    return PretrainingJob("small", config, data, (str(text / "0.txt"),), 32, 2, 1024, **options)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"{i} words follow each other, {i} times. " * 120)
    return folder


def test_a_job_pretrains_and_measures(text: Path, tmp_path: Path) -> None:
    job = small_job(text)
    folder = tmp_path / "sweep" / "jobs" / job.folder
    folder.mkdir(parents=True)
    result = do_job(job, folder)
    assert (result["status"], result["error"]) == ("done", None)
    assert [row["step"] for row in result["validation"]] == [2]
    assert [curve["data"] for curve in result["perplexity"]] == ["held-out", "0.txt"]
    assert {16, 32} <= set(result["perplexity"][0]["positions"])
    assert sum(result["audit"][kind] for kind in ("reflect", "rotate", "keep", "forget")) == (
        pytest.approx(1)
    )
    assert result_text(result).startswith("validation loss ")
    again = do_job(job, folder)  # the run is there: only the measurements are done anew
    for name in ("validation", "learning", "audit"):
        assert again[name] == result[name]


def test_a_job_scores_the_tasks_of_a_pack(text: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    write_pack(pack, ["parity"], lengths=[4, 8], samples=8)
    job = replace(small_job(text), harness=(str(pack),), harness_limit=3)
    folder = tmp_path / "sweep" / "jobs" / job.folder
    folder.mkdir(parents=True)
    result = do_job(job, folder)
    assert result["error"] is None
    scores = result["harness"]["scores"]
    found = [[s[name] for name in ("task", "metric", "documents")] for s in scores]
    assert found == [["statetrack_parity_4", "acc", 3], ["statetrack_parity_8", "acc", 3]]
    assert all(0 <= s["value"] <= 1 and s["chance"] >= 0.5 for s in scores)
    assert not any(s["above_chance"] for s in scores)  # 3 of 3 is luck

    missing = replace(job, harness=(str(tmp_path / "none"),))
    folder = tmp_path / "sweep" / "jobs" / missing.folder
    folder.mkdir(parents=True)
    result = do_job(missing, folder)
    assert "none has no index.json" in result["error"]
    assert not (folder / "run").exists()  # before the hours of training


def test_the_key_depends_on_the_texts_but_not_on_the_name(text: Path) -> None:
    job = small_job(text)
    assert replace(job, name="another", seconds=1.0).key == job.key
    assert replace(job, texts=()).key != job.key


def fake(job: PretrainingJob, loss: float) -> dict[str, Any]:
    curve = {"positions": [128, 256, 512, 1024, 2048]}
    sets = [
        {**curve, "data": data, "running_perplexity": {"value": [9.0 + loss] * 5}}
        for data in ("held-out", "prose")
    ]
    kinds = {"reflect": 0.1, "rotate": 0.0, "keep": 0.2, "forget": 0.7}
    rows = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": loss}]
    return {
        **job.description(), "key": job.key, "name": job.name, "status": "done", "error": None,
        "validation": rows, "perplexity": sets, "parameters": 2_000_000, "tokens": 10_000_000,
        "audit": {**kinds, "layers": [{"modulus": {"0.5": 0.5}}]}, "cpu_seconds": 60.0,
        "environment": {},
    }  # fmt: skip


def test_a_difference_is_claimed_only_if_the_interval_of_the_pairs_excludes_0() -> None:
    jobs = language_models.jobs(SETTINGS, Results())
    assert len(jobs) == 12
    losses = {job.key: 3.0 + 0.5 * job.seed for job in jobs}
    for job in jobs:
        if job.config.model.pattern[0].allow_neg_eigval:
            mamba = job.config.model.mixer_names == "mamba"
            # DeltaNet: better by about 0.1 in every pair; Mamba: once better, else worse
            losses[job.key] += (-0.1, 0.3, 0.1)[job.seed] if mamba else -0.1 + 0.001 * job.seed
    results = Results({job.key: fake(job, losses[job.key]) for job in jobs})
    document = language_models.document(SETTINGS, results)
    assert document.summary == [
        "DeltaNet tiny, validation loss: [-1,1] is better than [0,1]; [-1,1] minus [0,1] is "
        "-0.0990 nats per token (-0.1015 to -0.0965, 3 pairs).",
        "Mamba tiny, validation loss: no difference is claimed between the ranges; [-1,1] minus "
        "[0,1] is +0.1000 nats per token (-0.3968 to +0.5968, 3 pairs).",
    ]
    measured = [row[1] for row in document.tables[1].rows if row[0] == "Mamba tiny"]
    assert measured[:3] == ["validation", "held-out, 256 tokens", "held-out, 512 tokens"]
    assert [panel.title for panel in document.figures[1].panels] == ["held-out", "prose"]


def test_scores_of_the_harness_are_averaged_over_seeds() -> None:
    jobs = language_models.jobs(SETTINGS, Results())
    results = {}
    for job in jobs:
        acc = {"task": "piqa", "metric": "acc", "chance": 0.5, "above_chance": job.seed == 2}
        ppl = {"task": "lambada_openai", "metric": "perplexity", "chance": None}
        zero = {"task": "lambada_openai", "metric": "acc", "chance": 0.0, "above_chance": False}
        scores = [
            {**acc, "documents": 100, "value": 0.5 + 0.1 * job.seed},
            {**ppl, "documents": 90, "value": 1e6 if job.seed else None, "above_chance": False},
            {**zero, "documents": 90, "value": 0.01},
        ]
        harness = {"scores": scores, "shortened": {"piqa": 2}, "missing": ["fda"]}
        results[job.key] = {**fake(job, 3.0), "harness": harness}
    document = language_models.document(SETTINGS, Results(results))
    table = next(table for table in document.tables if table.name == "harness")
    assert [row[:5] for row in table.rows] == [
        ["piqa", "acc", 100, "50.0", "60.0 ± 24.8"],
        ["lambada_openai", "perplexity", 90, None, "not finite"],
        ["lambada_openai", "acc", 90, "0.0", "1.0 ± 0.0"],
        ["above chance (tasks x seeds)", None, None, None, "1 of 3"],
    ]
    assert table.note.endswith("Without data: fda. Some requests lost their beginning: piqa.")
    for change in ({"scores": []}, None):  # another pack, or none
        results[jobs[0].key]["harness"] = change and {**harness, **change}
        document = language_models.document(SETTINGS, Results(results))
        table = next(table for table in document.tables if table.name == "harness")
        assert (table.rows, table.note[:9]) == ([], "Left out:")
    for job in jobs:
        results[job.key]["harness"] = None
    document = language_models.document(SETTINGS, Results(results))
    assert "harness" not in [table.name for table in document.tables]


def test_sizes_of_a_model_are_apart() -> None:
    settings = Settings("paper")
    jobs = language_models.jobs(settings, Results())
    assert len({job.config.model.title for job in jobs}) < len(jobs) == 6
    results = Results({job.key: fake(job, 3.0 + i) for i, job in enumerate(jobs)})
    document = language_models.document(settings, results)
    assert [row[0] for row in document.tables[0].rows] == [
        "DeltaNet [0,1] 340m", "DeltaNet [-1,1] 340m", "DeltaNet [0,1] 1.3b",
        "DeltaNet [-1,1] 1.3b", "Mamba [0,1] mamba-370m", "Mamba [-1,1] mamba-370m",
    ]  # fmt: skip
    measured = [row for row in document.tables[1].rows if row[1] == "validation"]
    assert [row[:4] for row in measured] == [
        [name, "validation", 1, "+1.0000"]
        for name in ("DeltaNet 340m", "DeltaNet 1.3b", "Mamba mamba-370m")
    ]


def test_without_results_the_page_says_so() -> None:
    document = language_models.document(SETTINGS, Results())
    assert document.summary == ["No pair of runs is done yet."]
    assert not document.tables


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none.txt", "none.txt does not exist"),
        ("rows.jsonl", "rows.jsonl has rows, which need a data folder"),
        ("empty.txt", "empty.txt is empty"),
        ("text", "text is not a data folder"),
        ("other", "other was made with another tokenizer than that of small"),
    ],
)
def test_a_text_that_cannot_be_read_fails_the_job_before_training(
    text: Path, tmp_path: Path, name: str, says: str
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "empty.txt").write_text("")
    if name == "other":
        source = DataConfig(source=(str(text),), vocab_size=265, suffix=(".txt",))
        build_data(source, tmp_path / name)
    job = replace(small_job(text), texts=(str(tmp_path / name),))
    folder = tmp_path / "sweep" / "jobs" / job.folder
    folder.mkdir(parents=True)
    result = do_job(job, folder)
    assert result["status"] == "failed"
    assert says in result["error"]
    assert not (folder / "run").exists()


def test_a_data_folder_is_a_text(text: Path, tmp_path: Path) -> None:
    job = small_job(text)
    build_data(job.data, tmp_path / "again")
    job = replace(job, texts=(str(tmp_path / "again"),))
    folder = tmp_path / "sweep" / "jobs" / job.folder
    folder.mkdir(parents=True)
    result = do_job(job, folder)
    assert result["error"] is None
    held_out, again = result["perplexity"]
    assert (held_out["data"], again["data"]) == ("held-out", "again")
    assert again["running_perplexity"] == held_out["running_perplexity"]


def test_a_name_must_be_a_string() -> None:
    with pytest.raises(UserError):
        PretrainingJob(name=3)  # type: ignore[arg-type]
