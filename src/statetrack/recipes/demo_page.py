"""Tables, figure and page of `statetrack demo`."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from statetrack.files import write_atomic, write_json
from statetrack.recipes.demo import PARITY_TEST, SWAP_LENGTHS
from statetrack.report.evaluation import smooth
from statetrack.terminal import PlainConsole, print_table

# colours that the colour-blind tell apart; widths that show both lines where they coincide
STYLES = {"Mamba": ("#d55e00", 3.5), "DeltaNet": ("#0072b2", 1.4)}
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
    """Write results.json, figure.png, figure.svg and index.html."""
    write_json(folder / "results.json", summary)
    figure = draw(summary)
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "statetrack"}):
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=150)
    write_atomic(folder / "figure.svg", svg.getvalue())
    write_atomic(folder / "figure.png", png.getvalue())
    write_atomic(folder / "index.html", page(summary, svg.getvalue().decode()))


def print_tables(summary: dict[str, Any], console: PlainConsole) -> None:
    """Print the results beside the paper's."""
    for title, head, rows in tables(summary):
        if rows:
            print_table(console, title, head, rows)


def tables(summary: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return (title, column names, rows) of each table."""
    parity = [
        [
            row["model"],
            f"{row['best']:.3f}",
            f"{row['median']:.3f}",
            " ".join(f"{s:.3f}" for s in row["scores"].values()),
            f"{row['paper_best']:.3f} / {row['paper_median']:.3f}",
        ]
        for row in summary["parity"]
    ]
    swaps = [
        [row["model"], *(f"{v:.3f}" for v in row["sequence_accuracy"].values()), row["paper"]]
        for row in summary["swaps"]
    ]
    low, high = PARITY_TEST
    return [
        (
            f"Parity: trained on 3-40, scaled accuracy on {low}-{high} (paper: best / median)",
            ["model", "best", "median", "every seed", "paper"],
            parity,
        ),
        (
            "S5, swaps only: trained on length 32, sequence accuracy at",
            ["model", *map(str, SWAP_LENGTHS), "paper (Figure 4)"],
            swaps,
        ),
    ]


def draw(summary: dict[str, Any]) -> Figure:
    """Draw accuracy against length, one line a run."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    parity, swaps = figure.subplots(1, 2)
    _panel(parity, [r for r in summary["runs"] if r["experiment"] == "parity"], 40)
    parity.axvspan(*PARITY_TEST, color="black", alpha=0.04, linewidth=0)
    parity.text(42, 1.06, "scored: 40-256", ha="left", fontsize=8, color="0.4")
    parity.set(title="Parity", ylabel="scaled accuracy", ylim=(-0.15, 1.13))
    _panel(swaps, [r for r in summary["runs"] if r["experiment"] == "swaps"], 32)
    swaps.set(title="S5 word problem, swaps only", ylabel="sequence accuracy", ylim=(-0.05, 1.13))
    return figure


def _panel(axes: Axes, runs: list[dict[str, Any]], trained: int) -> None:
    shown = set()
    for run in runs:
        name, span = run["model"].split(" ")
        label = None if run["model"] in shown else run["model"]
        shown.add(run["model"])
        color, width = STYLES[name]
        axes.plot(
            *smooth(np.array(run["lengths"]), np.array(run["values"])),
            color=color,
            linestyle="-" if span == "[-1,1]" else ":",
            linewidth=width,
            alpha=0.7,
            label=label,
        )
    axes.axvline(trained, color="0.4", linewidth=0.8, linestyle="--")
    axes.text(trained * 0.95, 1.06, "trained up to here", ha="right", fontsize=8, color="0.4")
    axes.set(xscale="log", xlabel="sequence length")
    axes.set_xticks([4, 8, 16, 32, 64, 128, 256, 512, 1000])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.grid(alpha=0.2)
    if runs:
        axes.set_xlim(3, max(run["lengths"][-1] for run in runs))
        axes.legend(loc="center right", fontsize=8)


def page(summary: dict[str, Any], svg: str) -> str:
    """Return a self-contained HTML page: figure, tables, configurations, seeds, versions."""
    svg = svg[svg.index("<svg") :]
    parts = []
    for title, head, rows in tables(summary):
        cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        parts.append(f"<h2>{html.escape(title)}</h2><table><tr>{cells}</tr>{body}</table>")
    runs = "".join(
        f"<details><summary>{html.escape(run['model'])}, {run['experiment']}, seed {run['seed']}: "
        f"score {run['score']:.3f}, {run['parameters']:,} parameters, {run['seconds']:.0f} s"
        f"</summary><pre>{html.escape(json.dumps(summary['configs'][run['run']], indent=2))}</pre>"
        "</details>"
        for run in summary["runs"]
    )
    versions = ", ".join(f"{name} {v}" for name, v in summary["versions"].items())
    state = "" if summary["complete"] else "<p><b>Interrupted: not every run is here.</b></p>"
    if summary["smoke"]:
        state += f"<p><b>{html.escape(SMOKE)}</b></p>"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>statetrack demo, seed {summary["seed"]}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th, td {{ padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
pre {{ background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .8rem; }}
footer {{ margin-top: 2rem; color: #666; font-size: .85rem; }}
</style>
</head>
<body>
<h1>Linear RNNs track state once eigenvalues may be negative</h1>
{state}
{svg}
{"".join(parts)}
<p>{html.escape(DEMO_NOTE)}</p>
<h2>Every run</h2>
{runs}
<footer>seed {summary["seed"]}, {summary["seconds"]:.0f} s, {html.escape(versions)}</footer>
</body>
</html>
"""
