"""The recipe of `statetrack demo`: the paper's central result in minutes on a laptop."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from statetrack.recipes import presets
from statetrack.recipes.published import FINAL, PARITY
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, shortened
from statetrack.recipes.selection import has_failed
from statetrack.report.document import Cell, Document, Figure, Table
from statetrack.report.results import hardening_figure
from statetrack.sweep.job import Job
from statetrack.training import RunConfig

SEEDS = 3  # per model on parity, as in the paper
PARITY_TEST = (40, 256)
SWAP_LENGTHS = ("32", "64", "128", "256")  # in the table
LONG = ("1000", "10000", "100000")
# lengths to evaluate: the score at the first is shown when a run ends; the last is the greatest
LENGTHS = {
    "parity": ("100", "10", "40", *LONG),
    "swaps": ("128", "8", "32", "64", "256", *LONG),
}
MAX_TOKENS = 200_000  # of an evaluation: two sequences of the greatest length

# of the groups only curves are published, in Figure 4
PAPER_SWAPS = {
    "DeltaNet [0,1]": "5 layers: only slightly past 32",
    "DeltaNet [-1,1]": "1 layer: solved to 500",
}

TITLE = "Linear RNNs track state once eigenvalues may be negative"
NOTES = (
    "Both ranges of a model are trained alike. DeltaNet on parity has the three options that "
    "proved robust (docs/length-generalisation.md): a stretched beta, a late saturation penalty "
    "and a head-norm epsilon of 0.01. After training, `harden` rounds models to exact ones "
    "(docs/hardening.md); it sees sequences of the training lengths only.",
    "Parity: one layer (Mamba of width 16 with a final norm, DeltaNet of width 32), no "
    "convolution, a target at every position, learning rate 0.01, no weight decay, 300-400 steps "
    "of 32-64 sequences. The paper: two layers of width 128 with convolutions, a target at the "
    "answer only, 100,000 steps of 1,024. The score is the mean over lengths 40-256 of accuracy "
    "with chance at 0.",
    "Swaps: one DeltaNet layer of width 64, 600 steps of 64 sequences. The paper: one or five "
    "layers of width 128, 312,500 steps of 512. A sequence counts only if every position up to "
    "the length is right.",
)


def make_recipe(seed: int) -> Recipe:
    """Return the recipe of a demo; seed s stands for the training seeds 3s, 3s + 1, 3s + 2."""

    def jobs(settings: Settings, results: Results) -> list[Job]:
        return [job for model in list_models(seed, settings) for job in model.jobs]

    def document(settings: Settings, results: Results) -> Document:
        return make_document(seed, settings, results)

    return Recipe("demo", (), TITLE, jobs, document)


@dataclass(frozen=True)
class Model:
    """A model on a task, and its runs."""

    task: str  # "parity" or "swaps"
    jobs: Sequence[Job]  # one a seed
    results: Sequence[dict[str, Any]] = ()  # of those that are done
    failed: int = 0  # runs

    @property
    def title(self) -> str:
        """The model's name, as in tables."""
        return self.jobs[0].config.model.title

    @property
    def longest(self) -> str:
        """The greatest length that is evaluated."""
        return self.jobs[0].lengths[-1]

    @property
    def trained_on(self) -> int:
        """The greatest length of the training sequences."""
        return self.jobs[0].config.training.max_length

    def scores(self) -> list[float]:
        """Return the score of each run on parity: the mean over the lengths of PARITY_TEST."""
        low, high = PARITY_TEST
        curves = [result["trained"]["curve"] for result in self.results]
        pairs = [zip(c["lengths"], c["scaled"], strict=True) for c in curves]
        return [statistics.fmean(y for n, y in points if low <= n <= high) for points in pairs]

    def at(self, length: str, which: str, field: str = "token_accuracy") -> list[float]:
        """Return an accuracy of the "trained" models, or of those that could be "hardened"."""
        measured = [result[which] for result in self.results]
        return [m["evaluations"][length][field] for m in measured if m is not None]

    def exact(self, which: str) -> int:
        """Count the models that are right at every position of the longest sequences."""
        return self.at(self.longest, which, "sequence_accuracy").count(1.0)


def list_models(seed: int, settings: Settings) -> list[Model]:
    """List what the demo trains, hardens and evaluates, the slowest first.

    At the scale `smoke` every run is too short to learn, for tests of the machinery.
    """
    smoke = settings.scale == "smoke"
    seeds = [seed * SEEDS + i for i in range(1 if smoke else SEEDS)]
    models = []
    for allow in (True, False):
        config = presets.demo_swaps(allow_neg_eigval=allow, seed=seeds[0])
        models.append(Model("swaps", [_job("swaps", config, 35.0, smoke=smoke)]))
    for mixer, seconds in (("delta_net", 15.0), ("mamba", 6.0)):
        for allow in (True, False):
            configs = [presets.demo_parity(mixer, allow_neg_eigval=allow, seed=s) for s in seeds]
            jobs = [_job("parity", config, seconds, smoke=smoke) for config in configs]
            models.append(Model("parity", jobs))
    return models


def _job(task: str, config: RunConfig, seconds: float, *, smoke: bool) -> Job:
    job = Job(
        name=f"{task} {config.model.title} s{config.training.seed}",
        config=config,
        lengths=LENGTHS[task],
        curve=PARITY_TEST[1] if task == "parity" else None,
        samples=512,
        max_tokens=MAX_TOKENS,
        harden=True,
        seconds=seconds,
    )
    return replace(shortened(job), lengths=job.lengths[:-2]) if smoke else job


def make_document(seed: int, settings: Settings, results: Results) -> Document:
    """Return the report: the longest sequences, the results beside the paper's, the figures."""
    smoke = settings.scale == "smoke"
    models = list_models(seed, settings)
    jobs = [job for model in models for job in model.jobs]
    ended = results.of(jobs)
    counted = []  # in the order of the tables
    for model in reversed(models):
        found = results.of(model.jobs)
        good = [r for r in found if not has_failed(r)]
        counted.append(replace(model, results=good, failed=len(found) - len(good)))
    done = [model for model in counted if model.results]
    parity, swaps = ([m for m in done if m.task == task] for task in ("parity", "swaps"))
    warnings = []
    if len(ended) < len(jobs):
        warnings.append(f"Interrupted: {len(ended)} of {len(jobs)} runs have ended.")
    tables = [_long_table(parity + swaps), _parity_table(parity), _swaps_table(swaps)]
    figures = [
        _figure("parity", "Parity", parity),
        _figure("swaps", "S5 word problem, swaps only", swaps),
    ]
    about = {"command": f"statetrack demo --seed {seed}" + " --smoke" * smoke}
    return Document(
        f"seed{seed}",
        TITLE,
        [*warnings, *_verdict([m for m in counted if m.results or m.failed])],
        [table for table in tables if table.rows],
        [figure for figure in figures if figure is not None],
        NOTES,
        facts("demo", settings, jobs, results) | about,
        {f"{r['name']}: {r['parameters']:,} parameters": job.config.to_json()
         for job in jobs for r in results.of([job])},
    )  # fmt: skip


def _verdict(models: Sequence[Model]) -> list[str]:
    """Count the models without a mistake in the longest sequences; failed runs count as wrong."""
    negative = [m for m in models if m.jobs[0].config.model.pattern[0].allow_neg_eigval]
    positive = [m for m in models if m not in negative]
    if not (negative and positive):
        return []

    def count(side: Sequence[Model], which: str) -> str:
        ended = sum(len(m.results) + m.failed for m in side)
        return f"{sum(m.exact(which) for m in side)} of {ended}"

    return [
        f"No mistake in {int(models[0].longest):,} tokens: {count(negative, 'hardened')} models "
        f"with eigenvalues in [-1,1] after hardening, {count(negative, 'trained')} as trained; "
        f"{count(positive, 'trained')} with [0,1]. They were trained on at most "
        f"{max(m.trained_on for m in models)} tokens."
    ]


def _long_table(models: Sequence[Model]) -> Table:
    rows: list[list[Cell]] = []
    for model in models:
        row: list[Cell] = [model.task, model.title]
        for which in ("trained", "hardened"):
            found = model.at(model.longest, which)
            exact = f"{model.exact(which)} of {len(model.results) + model.failed}"
            row += [statistics.fmean(found), exact] if found else [None, None]
        rows.append(row)
    longest = f"{int(models[0].longest):,}" if models else ""
    trained = ", ".join(dict.fromkeys(f"{m.trained_on} ({m.task})" for m in models))
    return Table(
        f"Right answers at {longest} tokens; trained on lengths up to {trained}",
        ["task", "model", "trained", "no mistake", "hardened", "no mistake"],
        rows,
        " ".join(["Shares are means over seeds.", *_not_hardened(models)]),
        name="long",
    )


def _not_hardened(models: Sequence[Model]) -> list[str]:
    """Say which models could not be hardened, and why."""
    reasons: dict[str, dict[str, None]] = {}
    for model in models:
        for result in model.results:
            if result["hardened"] is None:
                who = f"{model.title} on {model.task}"
                reasons.setdefault(result["harden"]["reason"], {})[who] = None
    return [f"Not hardened: {', '.join(who)}: {reason}." for reason, who in reasons.items()]


def _parity_table(models: Sequence[Model]) -> Table:
    rows: list[list[Cell]] = []
    for model in models:
        scores, paper = model.scores(), FINAL[model.title, PARITY]
        every = " ".join(f"{score:.3f}" for score in scores)
        rows.append([model.title, max(scores), statistics.median(scores), every,
                     paper.best, paper.median])  # fmt: skip
    low, high = PARITY_TEST
    return Table(
        f"Parity: trained on 3-40, scaled accuracy on {low}-{high}",
        ["model", "best", "median", "every seed", "paper, best", "paper, median"],
        rows,
        name="parity",
    )


def _swaps_table(models: Sequence[Model]) -> Table:
    def at(model: Model, length: str) -> float:
        return model.at(length, "trained", "sequence_accuracy")[0]

    return Table(
        "S5, swaps only: trained on length 32, sequence accuracy at",
        ["model", *SWAP_LENGTHS, "paper (Figure 4)"],
        [[m.title, *(at(m, n) for n in SWAP_LENGTHS), PAPER_SWAPS[m.title]] for m in models],
        name="swaps",
    )


def _figure(name: str, title: str, models: Sequence[Model]) -> Figure | None:
    groups = {model.title: model.results for model in models}
    return hardening_figure(
        title,
        groups,
        models[0].trained_on if models else 0,
        hardened=groups,
        seeds=True,
        note="Thick lines are means over seeds, thin ones single seeds; dashed: hardened.",
        name=name,
    )
