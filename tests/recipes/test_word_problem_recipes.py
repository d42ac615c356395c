"""The recipes of the word problems, of length generalisation and of the theorems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from statetrack.recipes import (
    length,
    length_runs,
    presets,
    s5,
    states,
    swaps,
    theorem_claims,
    theorems,
    z60,
)
from statetrack.recipes.recipe import Recipe, Results, Settings, find_recipe
from statetrack.recipes.word_problems import FIGURE_4
from statetrack.report.text import to_json
from statetrack.sweep.job import Job
from statetrack.sweep.work import do_job
from statetrack.training import length_range
from tests.recipes.made_up import failed, result

LAPTOP, PAPER, EARLY = Settings("laptop"), Settings("paper"), Settings("paper", early=True)
EARLY_LAPTOP, EARLY_SMOKE = Settings("laptop", early=True), Settings("smoke", early=True)
TRAINED = (s5.RECIPE, z60.RECIPE, length.RECIPE, theorems.RECIPE)
EVERY = pytest.mark.parametrize("recipe", TRAINED, ids=lambda recipe: recipe.name)


def made_up(job: Job, score: float, hardened: float | None = None) -> dict[str, Any]:
    """What the engine writes for a job whose sequence accuracy is `score` at every length."""
    found = result(job, score)
    found["allow_neg_eigval"] = job.config.model.pattern[0].allow_neg_eigval
    ranges = found["trained"]["evaluations"]
    for measured in ranges.values():
        measured["sequence_accuracy"] = score
    if job.curve is not None:
        found["trained"]["curve"]["sequence_accuracy"] = [score, score]
    if job.harden:
        found["harden"] = {"changed": hardened is not None, "reason": None}
    if job.harden and hardened is not None:
        texts = (*job.lengths, *job.hardened_lengths)
        measured = {"sequence_accuracy": hardened, "token_accuracy": hardened}
        evaluations = {text: {**measured, "max_length": length_range(text)[1]} for text in texts}
        found["hardened"] = {"evaluations": evaluations, "curve": None}
    return found


def run(
    recipe: Recipe, settings: Settings, make: Callable[[Job], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    return {job.key: make(job) for job in recipe.jobs(settings, Results())}


def negative(job: Job) -> bool:
    return job.config.model.pattern[0].allow_neg_eigval


def as_hoped(job: Job) -> dict[str, Any]:
    return made_up(job, float(negative(job)), 1.0 if negative(job) else None)


def test_aliases() -> None:
    for alias, module in (("fig4", s5), ("fig7", s5), ("fig8", z60), ("fig2", states),
                          ("fig3", swaps)):  # fmt: skip
        assert find_recipe(alias) is module.RECIPE


@pytest.mark.parametrize("problem", [*s5.PROBLEMS, *z60.FIGURE], ids=lambda p: p.key)
def test_the_paper_scale_is_the_protocol(problem: Any) -> None:
    module: Any = s5 if problem in s5.PROBLEMS else z60
    row = module.entries(PAPER)[problem]
    published = [entry for model, entry in row.items() if model.published]
    assert len(published) == len(FIGURE_4) == 7
    for model, entry in row.items():
        jobs = entry.jobs(Results())
        assert [job.config.training.seed for job in jobs] == list(range(3 if module is s5 else 1))
        if not model.published:
            continue
        for job in jobs:
            assert job.config == presets.paper(
                model.mixer, problem.task, allow_neg_eigval=model.neg, num_layers=model.layers,
                seed=job.config.training.seed, **dict(problem.options),
            )  # fmt: skip
            t = job.config.training
            assert (t.dataset_size, t.steps, t.batch_size) == (1_600_000, 312_500, 512)
            assert (job.curve, job.samples, t.data_seed) == (500, 40_000, 0)


def test_the_early_version_has_one_seed_and_fewer_epochs() -> None:
    steps = {}
    for job in s5.RECIPE.jobs(EARLY, Results()):
        assert job.config.training.seed == 0
        steps[job.name.split("-")[0]] = job.config.training.steps
    assert steps == {"S5": 93_750, "swaps": 93_750, "threes": 281_250, "four": 281_250}


def test_runs_in_stages_end_with_all_elements() -> None:
    for settings in (LAPTOP, PAPER):
        staged = [job for job in s5.RECIPE.jobs(settings, Results()) if job.config.stages]
        assert {job.name.split("-")[0] for job in staged} == {"S5", "four"}
        for job in staged:
            assert job.config.stages[-1].task is None
            assert job.config.training.dataset_size is None
            assert len(job.config.task.inputs) == 120  # type: ignore[attr-defined]


@pytest.mark.parametrize(("recipe", "hours"), [(s5.RECIPE, 2.8), (z60.RECIPE, 2.0),
                                               (length.RECIPE, 4.0), (theorems.RECIPE, 0.7)],
                         ids=lambda x: getattr(x, "name", ""))  # fmt: skip
def test_the_budget_at_laptop_scale(recipe: Recipe, hours: float) -> None:
    jobs = recipe.jobs(LAPTOP, Results())
    assert sum(job.seconds for job in jobs) <= hours * 3600
    assert len({job.key for job in jobs}) == len(jobs)
    assert {job.config.training.seed for job in jobs} >= set(range(5))


@EVERY
@pytest.mark.parametrize(
    "settings",
    [Settings("smoke"), LAPTOP, PAPER, EARLY_SMOKE, EARLY_LAPTOP, EARLY],
    ids=["smoke", "laptop", "paper", "smoke-early", "laptop-early", "paper-early"],
)
def test_documents_of_no_partial_and_failed_results(recipe: Recipe, settings: Settings) -> None:
    done = run(recipe, settings, as_hoped)
    half = dict(list(done.items())[::2])
    broken = run(recipe, settings, failed)
    for found in ({}, half, broken, done):
        document = recipe.document(settings, Results(found))
        assert document.summary
        assert to_json(document)
        for table in document.tables:
            assert {len(row) for row in table.rows} == {len(table.columns)}
    assert len(recipe.document(settings, Results(broken)).facts["failed"]) == len(broken)


def test_the_summary_claims_a_difference_only_if_intervals_are_disjoint() -> None:
    text = " ".join(s5.RECIPE.document(LAPTOP, Results(run(s5.RECIPE, LAPTOP, as_hoped))).summary)
    assert (
        "S5, only swaps, length 64: DeltaNet [-1,1], 1 layer is above DeltaNet [0,1], 1 layer by "
        "1.000, with disjoint 95 % intervals: 1.000 (1.000 to 1.000, 5 seeds) against 0.000" in text
    )
    assert "no difference is claimed" not in text
    assert "after hardening for 5 of 5 seeds" in text

    def mixed(job: Job) -> dict[str, Any]:
        return made_up(job, float(job.config.training.seed % 2))

    text = " ".join(s5.RECIPE.document(LAPTOP, Results(run(s5.RECIPE, LAPTOP, mixed))).summary)
    assert "disjoint" not in text
    assert "no difference is claimed between" in text
    assert "after hardening for 0 of 5 seeds" in text


def test_models_that_learn_nothing_share_a_sentence() -> None:
    def nothing(job: Job) -> dict[str, Any]:
        return made_up(job, 0.0)

    summary = s5.RECIPE.document(LAPTOP, Results(run(s5.RECIPE, LAPTOP, nothing))).summary
    (sentences,) = [text for text in summary if text.startswith("S5, only swaps, length 64:")]
    assert sentences.endswith("for DeltaNet, 1 layer; DeltaNet, 5 layers; Mamba, 5 layers.")


def test_lines_are_named_by_their_seeds() -> None:
    done = run(s5.RECIPE, LAPTOP, as_hoped)
    kept = {key: found for key, found in done.items() if found["seed"] != 1}
    figures = s5.RECIPE.document(LAPTOP, Results(kept)).figures
    every = next(figure for figure in figures if figure.name == "swaps-all-seeds")
    named = [line.label for line in every.series if line.label.startswith("DeltaNet [-1,1], 1 l")]
    assert named == [
        "DeltaNet [-1,1], 1 layer", *(f"DeltaNet [-1,1], 1 layer, seed {n}" for n in (0, 2, 3, 4))
    ]  # fmt: skip


def test_best_and_all_seeds_are_figures() -> None:
    document = s5.RECIPE.document(LAPTOP, Results(run(s5.RECIPE, LAPTOP, as_hoped)))
    best = next(figure for figure in document.figures if figure.name == "swaps-best-seed")
    every = next(figure for figure in document.figures if figure.name == "swaps-all-seeds")
    assert len(best.series) == 7
    assert sum(series.faint for series in every.series) == 7 * 5
    assert best.marks == ((32, "training length"),)


@pytest.mark.parametrize("recipe", [s5.RECIPE, z60.RECIPE, length.RECIPE], ids=lambda r: r.name)
def test_every_task_has_learning_curves_and_eigenvalues_where_they_are_stored(
    recipe: Recipe,
) -> None:
    document = recipe.document(LAPTOP, Results(run(recipe, LAPTOP, as_hoped)))
    stored = any(job.spectrum for job in recipe.jobs(LAPTOP, Results()))
    tasks = [t.title for t in document.tables if t.name not in ("final", "training")]
    for ending, wanted in (("learning curves", True), ("eigenvalues after training", stored)):
        drawn = [f.title.split(": ")[0] for f in document.figures if f.title.endswith(ending)]
        assert drawn == (tasks if wanted else [])


def test_the_notes_say_how_every_model_is_trained() -> None:
    notes = " ".join(s5.RECIPE.document(LAPTOP, Results()).notes)
    assert "DeltaNet, 1 layer: width 64, 4 heads, 600 steps, learning rate 0.003;" in notes
    assert "Full matrix, 1 layer: one-hot tokens, 400 steps, learning rate 0.003." in notes
    assert "Full S5: DeltaProduct, n = 4, 1 layer, in stages: width 64, 8 heads, 5,000" in notes
    notes = " ".join(z60.RECIPE.document(LAPTOP, Results()).notes)
    assert "Z3: DeltaProduct, n = 2, 1 layer: width 32, 4 heads, 800 steps" in notes
    assert "Z5: 3-40" in notes


def test_the_length_report_lists_the_training_of_every_subject() -> None:
    table = length.document(LAPTOP, Results()).tables[-1]
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(rows) == [subject.title for subject in length_runs.SUBJECTS]
    assert (rows["Parity"]["lengths"], rows["Parity"]["clipping"]) == ("3-40", "none")
    assert (rows["Full S5"]["steps"], rows["Full S5"]["heads"]) == ("5,000", 8)


def test_tables_have_the_papers_early_findings() -> None:
    tables = {table.name: table.note for table in s5.RECIPE.document(LAPTOP, Results()).tables}
    assert "(early version: 20)" in tables["S5"]
    assert "(early version: 120)" in tables["four"]


def test_length_evaluates_hardened_models_at_a_million_tokens() -> None:
    jobs = length.jobs(LAPTOP, Results())
    final = [job for job in jobs if job.hardened_lengths]
    counts: dict[str, int] = {}
    for job in final:
        assert job.harden
        assert job.hardened_lengths == ("1000000",)
        assert job.samples_at(1_000_000) == 1
        assert job.samples_at(100_000) == 2
        assert job.config.training.max_length <= 40
        counts[job.config.task.name] = counts.get(job.config.task.name, 0) + 1
    assert counts == {"parity": 20, "S5_only_swaps": 20, "Z3": 20, "S5_up_to_3": 5, "S5": 5,
                      "A5": 5, "S4": 5}  # fmt: skip
    assert {job.config.task.name for job in jobs if not negative(job)} == set(counts)


def test_each_remedy_differs_from_the_plain_run_in_its_own_options_only() -> None:
    subject = length_runs.SUBJECTS[1]
    plain, *_ = (length_runs.run_config(subject, arm, LAPTOP, 0) for arm in length_runs.ARMS)
    remedied = {
        arm.key: length_runs.run_config(subject, arm, LAPTOP, 0) for arm in length_runs.ARMS
    }
    stretch = replace(plain.model.pattern[0], beta_stretch=0.1)  # type: ignore[call-arg]
    assert remedied["stretch"] == replace(plain, model=replace(plain.model, mixer=stretch))
    penalty = replace(plain.training, saturation=0.05)
    assert remedied["saturation"] == replace(plain, training=penalty)
    assert remedied["carry"].model == plain.model
    assert remedied["carry"].training.carry > 1


def test_the_length_report_counts_exact_seeds() -> None:
    def mostly(job: Job) -> dict[str, Any]:
        broken = job.config.training.seed == 7
        return made_up(job, 0.5, 0.99 if broken else 1.0)

    document = length.document(LAPTOP, Results(run(length.RECIPE, LAPTOP, mostly)))
    final = document.tables[0]
    row = next(row for row in final.rows if row[0] == "Parity")
    assert row[final.columns.index("exact there")] == "19 of 20"
    assert row[final.columns.index("longest evaluated")] == "1,000,000"
    assert "for 19 of 20 seeds" in document.summary[0]


def test_the_length_report_counts_automata_that_are_the_tasks() -> None:
    def mostly(job: Job) -> dict[str, Any]:
        found = made_up(job, 1.0, 1.0)
        if job.harden:
            found["harden"]["automaton"] = {"is_the_tasks": job.config.training.seed > 1}
        return found

    final = length.document(LAPTOP, Results(run(length.RECIPE, LAPTOP, mostly))).tables[0]
    counts = [row[final.columns.index("automaton is the task's")] for row in final.rows]
    assert counts == ["18 of 20"] * 3 + ["3 of 5"] * 4
    assert final.title == "The chosen arm, hardened, on 20 or 5 seeds"


def test_failed_runs_are_not_exact() -> None:
    """17 of 20 seeds failed: the other three do not stand for all."""

    def some(job: Job) -> dict[str, Any]:
        return made_up(job, 1.0, 1.0) if job.config.training.seed < 3 else failed(job)

    document = length.document(LAPTOP, Results(run(length.RECIPE, LAPTOP, some)))
    assert "for 3 of 20 seeds (17 failed), trained" in document.summary[0]
    assert "With [0,1], 3 of 5 are exact at 40-256 (2 failed)." in document.summary[0]
    row = dict(zip(document.tables[0].columns, document.tables[0].rows[0], strict=True))
    assert (row["seeds"], row["exact there"]) == ("3 of 20, 17 failed", "3 of 20")
    assert "100000" in str(row["wrong lengths"])
    parity = document.tables[1]
    assert parity.rows[0][:3] == ["plain", "3 of 5, 2 failed", "3 of 5 (1.000)"]
    document = s5.RECIPE.document(LAPTOP, Results(run(s5.RECIPE, LAPTOP, some)))
    sentences = " ".join(document.summary)
    assert "after hardening for 3 of 5 seeds (2 failed)." in sentences
    assert "with disjoint 95 % intervals" not in sentences
    assert {row[1] for table in document.tables for row in table.rows} == {"3 of 5, 2 failed"}
    lines = [line.label for figure in document.figures for line in figure.series]
    assert "DeltaNet [-1,1], 1 layer (2 of 5 runs failed)" in lines


@pytest.mark.parametrize("recipe", [s5.RECIPE, length.RECIPE], ids=lambda r: r.name)
def test_a_report_of_failed_runs_alone_counts_them(recipe: Recipe) -> None:
    sentences = recipe.document(LAPTOP, Results(run(recipe, LAPTOP, failed))).summary
    assert not any("No run is done yet" in text or "Nothing can be" in text for text in sentences)
    assert all("failed" in text for text in sentences)


def test_tables_have_the_majority_baseline_of_tokens_if_a_curve_has_it() -> None:
    def with_curve(job: Job) -> dict[str, Any]:
        found = as_hoped(job)
        if job.curve is not None:
            found["trained"]["curve"] |= {"majority": [0.0, 0.37]}  # of the lengths 3 and 40
        return found

    table = z60.RECIPE.document(LAPTOP, Results(run(z60.RECIPE, LAPTOP, with_curve))).tables[0]
    assert table.rows[-1][0] == "majority baseline"
    assert table.rows[-1][2] == pytest.approx(sum(0.01 * n for n in range(30)) / 32)
    table = z60.RECIPE.document(LAPTOP, Results(run(z60.RECIPE, LAPTOP, as_hoped))).tables[0]
    assert "majority baseline" not in [row[0] for row in table.rows]


def test_the_texts_say_how_runs_in_stages_are_trained() -> None:
    for text in (
        length.document(LAPTOP, Results()).tables[-1].note,
        " ".join(s5.RECIPE.document(LAPTOP, Results()).notes),
    ):
        assert "then a constant learning rate until the last stage" in text
    staged = [
        job.config.stages
        for recipe in (s5.RECIPE, z60.RECIPE, length.RECIPE)
        for job in recipe.jobs(LAPTOP, Results())
        if job.config.stages
    ]
    for first, *middle, last in staged:
        assert (first.schedule, first.warmup) == ("constant", None)
        assert {(stage.schedule, stage.warmup) for stage in middle} <= {("constant", 0.0)}
        assert (last.schedule, last.warmup) == ("cosine", 0.0)


def test_z60_also_starts_from_theorem_6() -> None:
    jobs = {job.name: job for job in z60.RECIPE.jobs(LAPTOP, Results())}
    started = [job for job in jobs.values() if job.compiled]
    assert {(job.config.task.name, job.noise) for job in started} == {
        (name, noise) for name in ("Z3", "Z5") for noise in (0.0, 0.02)
    }
    assert len(started) == 4 * 5
    for job in started:  # but for the learning rate it is the run from scratch
        scratch = jobs[job.name.replace(f"-theorem6-noise{job.noise:g}", "")]
        training = replace(job.config.training, lr=scratch.config.training.lr)
        assert replace(job.config, training=training) == scratch.config
        assert job.lengths == scratch.lengths
    table = z60.RECIPE.document(LAPTOP, Results(run(z60.RECIPE, LAPTOP, as_hoped))).tables[2]
    titles = [row[0] for row in table.rows]
    assert "DeltaNet [-1,1], 2 layers, from the compiled solution with noise 0.02" in titles


def test_length_also_starts_from_compiled_models() -> None:
    started = [job for job in length.jobs(LAPTOP, Results()) if job.compiled]
    names = [f"automaton:{name}" for name in ("parity", "S5_only_swaps", "Z3")]
    assert [job.compiled for job in started[::5]] == names
    for job in started:
        assert job.compiled == job.config.task.name
        assert job.noise > 0
        assert job.config.training.max_length <= 40
        plain = job.name.replace("compiled", "plain")
        others = [other for other in length.jobs(LAPTOP, Results()) if other.name == plain]
        assert job.lengths == others[0].lengths


def test_compiled_claims_hold() -> None:
    for claim in theorem_claims.compiled_claims():
        needed = claim.name in ("Theorem 1", "Theorem 2")  # of all networks, so one is no proof
        word = theorem_claims.ILLUSTRATION if needed else "holds"
        assert claim.verdict.startswith(word), claim
    assert {claim.name for claim in theorem_claims.compiled_claims()} >= {
        "Lemma 1", "Theorem 1", "Theorem 2", "Proposition 1", "Theorem 3", "Theorem 4", "Theorem 6",
    }  # fmt: skip


def with_spectrum(real: float, imag: float, top: float) -> Callable[[Job], dict[str, Any]]:
    """A maker of results: models in [-1,1] score `top`, all have one such eigenvalue and 1."""

    def make(job: Job) -> dict[str, Any]:
        found = made_up(job, top * negative(job))
        layers = [{"real": [1.0, real], "imag": [0.0, imag]}] * job.config.model.num_layers
        return {**found, "spectrum": {"layers": layers} if job.spectrum else None}

    return make


def trained_claims(make: Callable[[Job], dict[str, Any]]) -> list[theorem_claims.Claim]:
    done = run(s5.RECIPE, LAPTOP, make) | run(theorems.RECIPE, LAPTOP, make)
    return theorems.trained_claims(LAPTOP, Results(done))


def verdicts(make: Callable[[Job], dict[str, Any]]) -> list[str]:
    return [claim.verdict.partition(":")[0] for claim in trained_claims(make)]


def test_trained_models_can_refute_a_claim() -> None:
    names = [claim.name for claim in theorems.trained_claims(LAPTOP, Results())]
    assert names == ["Theorem 1", "Theorem 2", "Theorem 3", "Theorem 6", "Theorem 6",
                     "Section 3.3", "Proposition 1"]  # fmt: skip
    assert verdicts(with_spectrum(-0.6, 0.8, 1.0)) == ["holds"] * 7
    solved_without = verdicts(with_spectrum(0.5, 0.0, 1.0))
    assert solved_without[:2] == ["REFUTED", "REFUTED"]
    assert verdicts(with_spectrum(-1.0, 0.0, 1.0))[:2] == ["holds", "REFUTED"]  # counts with real
    assert verdicts(with_spectrum(-1.5, 0.8, 1.0))[-1] == "REFUTED"
    # no run can refute that a task is solvable
    assert verdicts(lambda job: made_up(job, 1.0))[2:6] == ["holds"] * 4
    assert verdicts(lambda job: made_up(job, 0.0))[2:6] == ["not reached"] * 4


def test_an_eigenvalue_that_fades_is_none() -> None:
    """An untrained model in [-1,1] has negative eigenvalues near 0."""
    fading = theorems.LASTING - 0.01
    assert verdicts(with_spectrum(-fading, 0.0, 1.0))[0] == "REFUTED"
    assert verdicts(with_spectrum(0.0, fading, 1.0))[:2] == ["REFUTED", "REFUTED"]
    assert verdicts(with_spectrum(0.0, theorems.LASTING, 1.0))[:2] == ["holds", "holds"]


def test_the_verdict_says_how_many_other_models_have_such_an_eigenvalue() -> None:
    claim, *_ = trained_claims(with_spectrum(-1.0, 0.0, 1.0))
    assert claim.verdict == (
        "holds: 10 of 10 models that solve 40-256 have such an eigenvalue (modulus at least 0.9); "
        "of the 10 models that do not, 10 have it; before training, 0 of 10 models in [-1,1] have "
        "it"
    )


def test_a_claim_that_no_model_reaches_does_not_hold() -> None:
    claims = trained_claims(with_spectrum(-0.6, 0.8, 0.2))
    *others, _ = claims
    for claim in others:
        assert claim.verdict.startswith("not reached: 0 of "), claim
    assert others[3].verdict == (
        "not reached: 0 of 5 models in [-1,1] solve it at length 64, 0 of 5 in [0,1]; at the "
        "training length 32, 0 of 5 in [-1,1]"
    )
    done = run(theorems.RECIPE, LAPTOP, with_spectrum(-0.6, 0.8, 0.2))
    document = theorems.document(LAPTOP, Results(done))
    assert document.summary[0] == "8 of 14 checks hold."
    assert document.summary[1].startswith("Not reached by any model that was trained: Theorem 1 (")
    assert document.summary[2].startswith("Not measured: Section 3.3 (")  # without the runs of s5


def test_the_theorems_name_what_the_paper_scale_does_not_have() -> None:
    """Models of parity are small at every scale; the paper's are in another recipe."""
    small = {job.config.model for job in theorems.jobs(LAPTOP, Results()) if job.curve is None}
    paper = {job.config.model for job in theorems.jobs(PAPER, Results()) if job.curve is None}
    assert small == paper
    sentences = {s.scale: " ".join(theorems.document(s, Results()).notes) for s in (LAPTOP, PAPER)}
    text = "Parity: the small models of `statetrack demo` at this scale, too"
    assert text in sentences["paper"]
    assert text not in sentences["laptop"]


def test_failed_runs_stand_in_the_verdicts() -> None:
    def some(job: Job) -> dict[str, Any]:
        broken = job.config.training.seed == 1
        return failed(job) if broken else with_spectrum(-0.6, 0.8, 1.0)(job)

    claims = trained_claims(some)
    assert claims[0].verdict.endswith("(4 failed)")
    assert claims[2].verdict == (
        "holds: 4 of 5 models in [-1,1] solve it at length 64, 0 of 5 in [0,1]; at the training "
        "length 32, 4 of 5 in [-1,1] (2 failed)"
    )


def test_figures_2_and_3_are_computed() -> None:
    for recipe in (states.RECIPE, swaps.RECIPE):
        assert recipe.jobs(LAPTOP, Results()) == []
    document = states.document(LAPTOP, Results())
    assert document.tables[0].rows[-1] == [-1.0, "never"]
    document = swaps.document(LAPTOP, Results())
    assert "exactly the permutation matrix" in document.summary[0]
    ends = [series.y[-1] - 1 for series in document.figures[0].series]
    assert tuple(ends) == swaps.POINTS


@pytest.mark.parametrize("name", ["swaps-delta_net-neg-1l-s0", "S5-delta_product-neg-n4-1l-s0",
                                  "length-Z3-combined-s0", "length-parity-carry-s0",
                                  "length-Z3-compiled-s0",
                                  "Z3-delta_net-neg-2l-theorem6-noise0.02-s0"])  # fmt: skip
def test_smoke_jobs_run(name: str, tmp_path: Any) -> None:
    smoke = Settings("smoke")
    jobs = [job for recipe in TRAINED for job in recipe.jobs(smoke, Results())]
    job = next(job for job in jobs if job.name == name)
    found = do_job(job, tmp_path)
    assert found["status"] == "done", found["error"]
    assert set(found["trained"]["evaluations"]) == set(job.lengths)
