"""The report of `statetrack demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from statetrack.files import write_json
from statetrack.recipes.demo import PARITY_TEST, SWAP_LENGTHS
from statetrack.report.document import Document, Figure, Table
from statetrack.report.evaluation import smooth
from statetrack.report.render import write_document
from statetrack.report.results import seed_lines

DEMO_NOTE = (
    "Small models, for a laptop; both ranges of a model are trained alike. Parity: one layer "
    "(Mamba of width 16 with a final norm, DeltaNet of width 32), no convolution, a target at "
    "every position, learning rate 0.01, no weight decay, 300-400 steps of 32-64 sequences; "
    "DeltaNet has a stretched beta, a late saturation penalty and a head-norm epsilon of 0.01. "
    "The paper: two layers of width 128 with convolutions, a target at the answer only, 100,000 "
    "steps of 1,024. The score is the mean over lengths 40-256 of accuracy with chance at 0. "
    "Swaps: one DeltaNet layer of width 64, 600 steps of 64 sequences. The paper: one or five "
    "layers of width 128, 312,500 steps of 512. A sequence counts only if every position up to "
    "the length is right."
)

SMOKE = (
    "Smoke test: 4 training steps. These numbers mean nothing; do not compare them with the "
    "paper's. `statetrack demo` trains the models."
)


def write_report(summary: dict[str, Any], folder: Path) -> None:
    """Write results.json and the files of the report."""
    write_json(folder / "results.json", summary)
    write_document(demo_document(summary), folder)


def demo_document(summary: dict[str, Any]) -> Document:
    """Return the report: the results beside the paper's, and accuracy against length."""
    warnings = [] if summary["complete"] else ["Interrupted: not every run is here."]
    figures = [
        _figure(summary, "parity", "Parity", "scaled accuracy (chance is 0)", 40),
        _figure(summary, "swaps", "S5 word problem, swaps only", "sequence accuracy", 32),
    ]
    return Document(
        "demo",
        "Linear RNNs track state once eigenvalues may be negative",
        [*warnings, SMOKE] if summary["smoke"] else warnings,
        tables(summary),
        [figure for figure in figures if figure.series],
        [DEMO_NOTE],
        {name: summary[name] for name in ("seed", "seconds", "versions")},
        {_about(run): summary["configs"][run["run"]] for run in summary["runs"]},
    )


def _about(run: dict[str, Any]) -> str:
    facts = f"score {run['score']:.3f}, {run['parameters']:,} parameters, {run['seconds']:.0f} s"
    return f"{run['model']}, {run['experiment']}, seed {run['seed']}: {facts}"


def tables(summary: dict[str, Any]) -> list[Table]:
    """Return the results beside the paper's; no table of an experiment without results."""
    parity = [
        [
            row["model"],
            row["best"],
            row["median"],
            " ".join(f"{s:.3f}" for s in row["scores"].values()),
            row["paper_best"],
            row["paper_median"],
        ]
        for row in summary["parity"]
    ]
    swaps = [
        [row["model"], *row["sequence_accuracy"].values(), row["paper"]] for row in summary["swaps"]
    ]
    low, high = PARITY_TEST
    found = [
        Table(
            f"Parity: trained on 3-40, scaled accuracy on {low}-{high}",
            ["model", "best", "median", "every seed", "paper, best", "paper, median"],
            parity,
            name="parity",
        ),
        Table(
            "S5, swaps only: trained on length 32, sequence accuracy at",
            ["model", *map(str, SWAP_LENGTHS), "paper (Figure 4)"],
            swaps,
            name="swaps",
        ),
    ]
    return [table for table in found if table.rows]


def _figure(
    summary: dict[str, Any], experiment: str, title: str, y_label: str, trained: int
) -> Figure:
    """Return accuracy against length: the mean of a model's seeds, and each of them."""
    lines: dict[str, list[dict[float, float]]] = {}
    for run in summary["runs"]:
        if run["experiment"] == experiment:
            x, y = smooth(np.array(run["lengths"]), np.array(run["values"]))
            line = dict(zip(x.tolist(), y.tolist(), strict=True))
            lines.setdefault(run["model"], []).append(line)
    return Figure(
        title,
        "sequence length",
        y_label,
        [series for model, runs in lines.items() for series in seed_lines(model, runs)],
        log_x=True,
        marks=((trained, f"trained up to {trained}"),),
        y_range=(-0.15, 1.05),
        note="Averages over bins of 8 % of the length; bands are 95 % intervals over seeds.",
        name=experiment,
    )
