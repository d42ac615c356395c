"""Choose learning rates, and summarise the seeds of a model.

The rule is the paper's: the learning rate with the highest median over seeds; of its seeds the
best, the median and the median absolute deviation are reported. A difference between two models is
claimed only if the 95 % intervals of their means over seeds are disjoint.

A run that failed has no score. It is never left out silently: no difference is claimed for a model
of which a reported run failed, counts have all reported seeds as denominator, and tables say how
many failed. `Entry` has the methods for this; `make_documents` begins a summary with the failures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from statetrack.recipes.recipe import Results
from statetrack.report.spread import Spread
from statetrack.sweep.job import Job
from statetrack.training import length_range

K = TypeVar("K")
Score = Callable[[Mapping[str, Any]], float | None]
Test = Callable[[Mapping[str, Any]], bool]

TUNING_SEEDS = (100, 101)  # choose learning rates; never among the seeds that are reported


def evaluated(lengths: str, field: str = "scaled", of: str = "trained") -> Score:
    """Return a function that reads the evaluation of a result on these lengths, if it has one.

    Args:
        lengths: of the evaluation.
        field: of the evaluation.
        of: "trained" or "hardened".
    """

    def read(result: Mapping[str, Any]) -> float | None:
        measured = (result.get(of) or {}).get("evaluations", {}).get(lengths)
        return None if measured is None else float(measured[field])

    return read


def sequence_accuracy(lengths: str, of: str = "trained") -> Score:
    """Return a function that reads the share of sequences with every position right."""
    return evaluated(lengths, "sequence_accuracy", of)


def exact(lengths: Sequence[str], of: str = "hardened") -> Test:
    """Return a test: whether a model is right at every position of every evaluation."""
    scores = [sequence_accuracy(n, of) for n in lengths]
    return lambda result: all(score(result) == 1.0 for score in scores)


def has_failed(result: Mapping[str, Any]) -> bool:
    """Whether the run failed, for example because its loss diverged."""
    return bool(result["status"] == "failed")


def validated(lengths: str, field: str = "scaled") -> Score:
    """Return a function that reads the last validation of a result on these lengths."""
    low, high = length_range(lengths)

    def read(result: Mapping[str, Any]) -> float | None:
        rows = result.get("validation") or []
        at = [row for row in rows if (row["min_length"], row["max_length"]) == (low, high)]
        return float(at[-1][field]) if at else None

    return read


def spread_of(results: Sequence[Mapping[str, Any]], score: Score) -> Spread | None:
    """Return the scores of those results that have one, and how many failed; None if none has."""
    scores = tuple(value for result in results if (value := score(result)) is not None)
    return Spread(scores, sum(map(has_failed, results))) if scores else None


def intervals_disjoint(a: Spread | None, b: Spread | None) -> bool:
    """Whether both means have 95 % intervals that a claim may rest on, and these are disjoint."""
    one, two = a and a.claim_interval, b and b.claim_interval
    return bool(one and two) and (one[0] > two[1] or two[0] > one[1])  # type: ignore[index]


def choose(scores: Mapping[K, Sequence[float | None]]) -> K:
    """Return the candidate with the highest median over seeds.

    A run without a score (it diverged) ranks below every other. Ties go to the candidate whose
    worst seed is better, then to the one that is listed first.
    """

    def rank(candidate: K) -> tuple[float, float]:
        values = [-math.inf if s is None else s for s in scores[candidate]]
        return statistics.median(values), min(values)

    return max(scores, key=rank)


@dataclass(frozen=True)
class Entry:
    """A model on a task: runs that choose its learning rate, and runs that are reported.

    `make(lr, seed)` is a run's job. Without `tuning` seeds the learning rate is chosen on the seeds
    that are reported, as in the paper.
    """

    column: str
    title: str
    make: Callable[[float, int], Job]
    lrs: tuple[float, ...]
    seeds: tuple[int, ...]
    score: Score
    tuning: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # a document asks for the same jobs again and again
        object.__setattr__(self, "make", cache(self.make))

    def tuning_jobs(self) -> dict[float, list[Job]]:
        """The jobs that choose, by learning rate; none if there is nothing to choose."""
        if len(self.lrs) == 1:
            return {}
        return {lr: [self.make(lr, s) for s in self.tuning or self.seeds] for lr in self.lrs}

    def lr(self, results: Results) -> float | None:
        """The chosen learning rate; None until the runs that choose it are done."""
        candidates = self.tuning_jobs()
        if not candidates:
            return self.lrs[0]
        if not all(map(results.complete, candidates.values())):
            return None
        found = {lr: [self.score(r) for r in results.of(js)] for lr, js in candidates.items()}
        return choose(found)

    def reported_jobs(self, results: Results) -> list[Job]:
        """The jobs of the chosen learning rate; none until it is chosen."""
        lr = self.lr(results)
        return [] if lr is None else [self.make(lr, seed) for seed in self.seeds]

    def jobs(self, results: Results) -> list[Job]:
        """All jobs that are known so far, each once."""
        listed = [job for jobs in self.tuning_jobs().values() for job in jobs]
        listed += self.reported_jobs(results)
        return list({job.key: job for job in listed}.values())

    def reported(self, results: Results) -> list[dict[str, Any]]:
        """The results of the chosen learning rate, those of runs that failed included."""
        return results.of(self.reported_jobs(results))

    def done(self, results: Results) -> list[dict[str, Any]]:
        """The results of the chosen learning rate whose runs did not fail."""
        return [result for result in self.reported(results) if not has_failed(result)]

    def failed(self, results: Results) -> int:
        """Count the reported runs that failed."""
        return sum(map(has_failed, self.reported(results)))

    def seeds_text(self, results: Results) -> str:
        """Format the number of reported runs that are done, and of those that failed."""
        text = f"{len(self.done(results))} of {len(self.seeds)}"
        failed = self.failed(results)
        return f"{text}, {failed} failed" if failed else text

    def count_text(self, results: Results, test: Test) -> str:
        """Format how many reported seeds pass a test; failed and missing runs do not."""
        return f"{sum(map(test, self.done(results)))} of {len(self.seeds)}"

    def spread(self, results: Results) -> Spread | None:
        """The scores of the seeds that are reported; None if there are none."""
        return spread_of(self.reported(results), self.score)


def comparison_sentence(
    first: Entry, second: Entry, results: Results, what: str, score: Score | None = None
) -> str | None:
    """Say whether two models differ on a task; None if one of them has no score yet.

    A difference is claimed only if the 95 % intervals over seeds are disjoint, and if no reported
    run of either failed.

    Args:
        first: a model.
        second: the one that it is compared with.
        results: of the runs that are done.
        what: the task, with which the sentence begins.
        score: the score to compare; that of each entry if absent.
    """
    head = f"{what[0].upper()}{what[1:]}"
    if failures := failures_text((first, second), results):
        return (
            f"{head}: no difference is claimed between {first.title} and {second.title}, because "
            f"runs failed: {failures}."
        )
    one, two = (spread_of(c.reported(results), score or c.score) for c in (first, second))
    if one is None or two is None:
        return None
    numbers = f"{_mean_text(one)} against {_mean_text(two)}"
    if not intervals_disjoint(one, two):
        return (
            f"{head}: no difference is claimed between {first.title} and {second.title}: "
            f"{numbers}; their 95 % intervals over seeds overlap, or there are too few seeds."
        )
    word = "above" if one.mean > two.mean else "below"
    by = f"by {abs(one.mean - two.mean):.3f}, with disjoint 95 % intervals"
    return f"{head}: {first.title} is {word} {second.title} {by}: {numbers}."


def failures_text(entries: Iterable[Entry], results: Results) -> str:
    """List the models of which a reported run failed, with the number of these; empty if none."""
    return ", ".join(
        f"{entry.title} ({failed} of {len(entry.seeds)})"
        for entry in entries
        if (failed := entry.failed(results))
    )


def without_result(results: Results, *entries: Entry) -> str:
    """Say in brackets how many reported seeds failed or were not run; empty if none."""
    failed = sum(entry.failed(results) for entry in entries)
    absent = sum(len(entry.seeds) - len(entry.reported(results)) for entry in entries)
    parts = [f"{failed} failed"] if failed else []
    parts += [f"{absent} not run yet"] if absent else []
    return f" ({', '.join(parts)})" if parts else ""


def not_judged(entries: Iterable[Entry], results: Results) -> str:
    """Return a sentence that names the models of which a reported run failed; empty if none."""
    failures = failures_text(entries, results)
    return f" Not judged, because runs failed: {failures}." if failures else ""


def _mean_text(spread: Spread) -> str:
    count = len(spread.scores)
    interval = f"{spread.interval_text}, " if spread.interval else ""
    return f"{spread.mean:.3f} ({interval}{count} seed{'s' if count > 1 else ''})"
