"""The rule that selects learning rates, and summaries of seeds."""

from __future__ import annotations

from typing import Any

import pytest

from statetrack.models import ModelConfig
from statetrack.recipes.recipe import Results
from statetrack.recipes.selection import (
    Entry,
    choose,
    comparison_sentence,
    evaluated,
    intervals_disjoint,
    not_judged,
    spread_of,
    validated,
    without_result,
)
from statetrack.report.spread import Spread
from statetrack.sweep.job import Job
from statetrack.tasks import make_task
from statetrack.training import RunConfig, TrainingConfig
from tests.recipes.made_up import failed, result


def make(lr: float, seed: int) -> Job:
    task = make_task("parity")
    training = TrainingConfig(lr=lr, seed=seed, eval_every=100, eval_lengths=("40-256",))
    model = ModelConfig(vocab_size=len(task.vocab), hidden_size=8)
    return Job("run", RunConfig(task, model, training), lengths=("40-256",))


def entry(
    tuning: tuple[int, ...] = (), title: str = "A", lrs: tuple[float, ...] = (1e-2, 1e-3)
) -> Entry:
    return Entry("parity", title, make, lrs, (0, 1, 2), evaluated("40-256"), tuning)


def test_the_median_decides_not_the_best_seed_or_the_mean() -> None:
    assert choose({"a": [1.0, 0.1, 0.1], "b": [0.2, 0.2, 0.0]}) == "b"


def test_ties_go_to_the_better_worst_seed_and_then_to_the_first() -> None:
    assert choose({"a": [0.0, 1.0, 1.0], "b": [0.5, 1.0, 1.0]}) == "b"
    assert choose({"a": [1.0, 1.0], "b": [1.0, 1.0]}) == "a"


def test_a_run_without_a_score_ranks_below_every_other() -> None:
    assert choose({"a": [None, None, 1.0], "b": [-0.5, -0.5, -0.5]}) == "b"
    assert choose({"a": [None], "b": [None]}) == "a"


def test_intervals_disjoint() -> None:
    high, low = Spread((0.30, 0.26, 0.28)), Spread((0.0, 0.01, -0.01))
    assert intervals_disjoint(high, low)
    assert intervals_disjoint(low, high)
    assert not intervals_disjoint(high, Spread((0.9, -0.5, 0.0)))
    assert not intervals_disjoint(Spread((1.0,)), Spread((0.0,)))  # one seed has no interval
    assert not intervals_disjoint(high, None)


def test_a_claim_needs_three_seeds() -> None:
    """The interval of two equal seeds has no width."""
    assert not intervals_disjoint(Spread((1.0, 1.0)), Spread((0.0, 0.0)))
    assert not intervals_disjoint(Spread((1.0,) * 3), Spread((0.0, 0.0)))
    assert intervals_disjoint(Spread((1.0,) * 3), Spread((0.0,) * 3))
    assert not intervals_disjoint(Spread((1.0,) * 3), Spread((0.0,) * 3, failed=1))


def with_failures(*scores: float | None) -> tuple[Entry, dict[str, dict[str, Any]]]:
    """A model and the scores of its seeds; None failed, and seeds without one were not run."""
    one = entry(lrs=(1e-2,))
    listed = zip(one.jobs(Results()), scores, strict=False)
    return one, {j.key: failed(j) if s is None else result(j, s) for j, s in listed}


def test_runs_that_failed_are_counted() -> None:
    one, done = with_failures(1.0, None)
    results = Results(done)
    spread = one.spread(results)
    assert spread is not None
    assert (spread.scores, spread.failed, spread.cell(spread.mean)) == (
        (1.0,),
        1,
        "1.000 (1 failed)",
    )
    assert (len(one.reported(results)), len(one.done(results)), one.failed(results)) == (2, 1, 1)
    assert one.seeds_text(results) == "1 of 3, 1 failed"
    assert one.count_text(results, lambda result: True) == "1 of 3"
    assert without_result(results, one, one) == " (2 failed, 2 not run yet)"
    assert not_judged([one], results) == " Not judged, because runs failed: A (1 of 3)."
    one, done = with_failures(1.0, 1.0, 1.0)
    assert without_result(Results(done), one) == not_judged([one], Results(done)) == ""
    assert one.seeds_text(Results(done)) == "3 of 3"


@pytest.mark.parametrize("scores", [(0.9, 0.9, None), (None,) * 3])
def test_no_difference_is_claimed_for_a_model_with_a_failed_run(
    scores: tuple[float | None, ...],
) -> None:
    a, done = with_failures(*scores)
    b = entry(lrs=(1e-3,), title="B")
    done |= {job.key: result(job, 0.1) for job in b.jobs(Results())}
    for pair in ((a, b), (b, a)):
        text = comparison_sentence(*pair, Results(done), "parity")
        assert text is not None
        assert "no difference is claimed" in text
        assert f"runs failed: A ({scores.count(None)} of 3)." in text


def test_scores_are_read_from_evaluations_and_the_last_validation() -> None:
    done = result(make(1e-2, 0), 0.25)
    done["validation"][0]["scaled"] = 0.75  # an earlier step
    assert evaluated("40-256")(done) == 0.25
    assert validated("40-256")(done) == 0.25
    assert evaluated("128")(done) is None
    assert validated("3-40")(done) is None
    assert evaluated("40-256")(failed(make(1e-2, 0))) is None
    assert spread_of([failed(make(1e-2, 0))], evaluated("40-256")) is None


def test_tuning_seeds_choose_and_other_seeds_are_reported() -> None:
    one = entry(tuning=(100, 101))
    assert [j.config.training.seed for j in one.jobs(Results())] == [100, 101, 100, 101]
    done = {}
    for lr, jobs in one.tuning_jobs().items():
        done |= {job.key: result(job, lr) for job in jobs}
    assert one.lr(Results(done)) == 1e-2
    listed = one.jobs(Results(done))
    fresh = [job.config.training for job in listed if job.key not in done]
    assert [(t.lr, t.seed) for t in fresh] == [(1e-2, 0), (1e-2, 1), (1e-2, 2)]
    assert one.spread(Results(done)) is None  # tuning runs are not reported
    partly = dict(list(done.items())[:3])
    assert one.lr(Results(partly)) is None


def test_without_tuning_seeds_the_reported_seeds_choose() -> None:
    one = entry()
    assert len(one.jobs(Results())) == 6
    done = {job.key: result(job, job.config.training.lr) for job in one.jobs(Results())}
    assert one.lr(Results(done)) == 1e-2
    assert len(one.jobs(Results(done))) == 6
    spread = one.spread(Results(done))
    assert spread is not None
    assert spread.scores == (1e-2,) * 3


def test_one_learning_rate_needs_no_choice() -> None:
    assert len(entry(tuning=(100,), lrs=(1e-3,)).jobs(Results())) == 3


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((0.9, 0.2), "A is above B by 0.700, with disjoint 95 % intervals: "),
        ((0.2, 0.9), "A is below B by 0.700, with disjoint 95 % intervals: "),
        ((0.5, 0.5), "no difference is claimed between A and B: "),
    ],
)
def test_a_difference_is_claimed_only_if_intervals_are_disjoint(
    scores: tuple[float, float], expected: str
) -> None:
    a = entry(lrs=(1e-2,))
    b = entry(lrs=(1e-3,), title="B")
    done = {}
    for one, score in zip((a, b), scores, strict=True):
        for seed, job in enumerate(one.jobs(Results())):
            done[job.key] = result(job, score + 0.01 * seed)
    text = comparison_sentence(a, b, Results(done), "parity")
    assert text is not None
    assert text.startswith(f"Parity: {expected}")
    assert comparison_sentence(a, b, Results(), "parity") is None
