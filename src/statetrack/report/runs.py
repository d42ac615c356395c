"""The report of any run folders."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statetrack import __version__
from statetrack.compiler.folders import is_compiled, is_hardened
from statetrack.errors import UserError
from statetrack.report.configs import flat, option_text, varying
from statetrack.report.document import Cell, Document, Figure, Table
from statetrack.report.evaluation import BASELINE, BASELINE_NOTE, lengths_text, scaled_majority
from statetrack.report.results import (
    Result,
    learning_figure,
    length_figure,
    spectrum_figure,
    validation_figures,
)
from statetrack.sweep.spectrum import sampled_spectrum
from statetrack.training import Run, curve, finite_training_set
from statetrack.training.evaluate import score_chance

POINTS = 200  # of a line
CURVE_MULTIPLE = 8  # the curve goes up to this multiple of the training length
COMPARED = 8  # runs side by side in the table of configurations


def runs_document(
    folders: Sequence[Path],
    *,
    longest: int | None = None,
    samples: int = 256,
    device: str = "cpu",
) -> Document:
    """Return a report that compares runs.

    Args:
        folders: run folders; hardened and compiled ones too.
        longest: trace accuracy up to this length; 0 traces nothing; the default is 8 times the
            greatest training length.
        samples: sequences of each length.
        device: where the models are measured, as `TrainingConfig.device`.

    Returns:
        Learning curves, validation by range, accuracy against length with the horizon, eigenvalues
        of the trained models, and how the configurations differ.

    Raises:
        UserError: A folder is no run folder, or one of its files cannot be read.
    """
    # a folder that is given twice is one run
    folders = list({Path(folder).resolve(): folder for folder in folders}.values())
    runs = dict(zip(run_names(folders), map(Run.open, folders), strict=True))
    results = {name: read_run(run, longest, samples, device) for name, run in runs.items()}
    tables = [_runs_table(runs, results), _scores_table(runs, results), *_differences(runs)]
    seeds = sorted({run.config.training.seed for run in runs.values()})
    seconds = [s for r in results.values() if (s := r["cpu_seconds"]) is not None]
    facts: dict[str, Any] = {"seeds": seeds, "report made with": versions()}
    if devices := list(dict.fromkeys(d for run in runs.values() for d in run.devices)):
        facts["trained on"] = devices
    if seconds:
        facts["CPU seconds of training"] = float(sum(seconds))
    return Document(
        "runs",
        next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs",
        [_verdict(name, runs[name], r) for name, r in results.items()],
        tables,
        _figures(runs, results),
        facts=facts,
        configs={name: run.config.to_json() for name, run in runs.items()},
    )


def versions() -> dict[str, str]:
    """Return the versions that a report was made with."""
    return {
        "statetrack": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def run_names(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, with as many parent folders as make the names unique."""
    paths = [Path(folder).resolve() for folder in folders]
    paths = list(dict.fromkeys(paths))
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def read_run(run: Run, longest: int | None, samples: int, device: str = "cpu") -> dict[str, Any]:
    """Read a run's metrics and measure its model, in the format of a job's result."""
    learning = _thin(_rows(run, "train", ("loss", "accuracy")))
    validation = _rows(run, "validation", ("min_length", "max_length", "score", "scaled"))
    last = learning[-1] if learning else {}
    steps = run.checkpoint_steps()
    result: dict[str, Any] = {
        "seed": run.config.training.seed,
        "learning": {k: [row[k] for row in learning] for k in ("step", "loss", "accuracy")},
        "validation": validation,
        "cpu_seconds": last.get("cpu_seconds"),
        "train_loss": last.get("loss"),
        "train_accuracy": last.get("accuracy"),
        "steps": steps[-1] if steps else last.get("step"),
        "trained": None,
        "spectrum": None,
        "parameters": None,
    }
    if not steps:
        return result
    model = run.model(device=device)
    result["spectrum"] = sampled_spectrum(run.config, model)
    result["parameters"] = model.num_parameters()
    task, training = run.config.task, run.config.training
    if longest != 0:
        exclude = finite_training_set(run.config)
        top = longest or CURVE_MULTIPLE * training.max_length
        seed = training.data_seed
        traced = curve(model, task, top, samples=samples, data_seed=seed, exclude=exclude)
        measured = traced.to_json()
        kept = _thin(list(range(len(measured["lengths"]))))
        lines = {k: [v[i] for i in kept] for k, v in measured.items() if isinstance(v, list)}
        result["trained"] = {"evaluations": {}, "curve": {**measured, **lines}}
    return result


def _rows(run: Run, kind: str, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of metrics of a kind; raise a UserError if one lacks a number."""
    rows = [row for row in run.metrics() if row.get("kind") == kind]
    for row in rows:
        for name in fields:
            if type(row.get(name)) not in (int, float):
                where = f"{run.metrics_file}: the {kind} row of step {row['step']}"
                raise UserError(f"{where} has no number {name}")
    return rows


def _thin(items: list[Any]) -> list[Any]:
    """Return at most POINTS items at equal distances, the first and the last among them."""
    if len(items) <= POINTS:
        return items
    return [items[i] for i in np.linspace(0, len(items) - 1, POINTS).round().astype(int)]


def _horizon(result: Result) -> tuple[int | None, int] | None:
    """Return the horizon and the length up to which it was searched; None without a search."""
    traced = (result["trained"] or {}).get("curve")
    return None if traced is None else (traced["horizon"], traced["lengths"][-1])


def _verdict(name: str, run: Run, result: Result) -> str:
    about = f"{name}: {run.config.model.title} on {run.config.task.name}"
    found = _horizon(result)
    if result["parameters"] is None:
        return f"{about} has no checkpoint yet."
    if found is None:
        return f"{about}, {result['steps']:,} steps."
    horizon, searched = found
    if horizon is None:
        return f"{about} does not reach an accuracy of 0.99 at any length up to {searched:,}."
    if horizon == searched:
        return f"{about} stays at an accuracy of 0.99 or above at all lengths up to {searched:,}."
    return (
        f"{about} stays at an accuracy of 0.99 or above up to length {horizon:,} of {searched:,}."
    )


def _runs_table(runs: dict[str, Run], results: dict[str, dict[str, Any]]) -> Table:
    rows: list[list[Cell]] = []
    for name, run in runs.items():
        kind = "hardened" if is_hardened(run.folder) else "trained"
        kind = "compiled" if is_compiled(run.folder) else kind
        r, seconds = results[name], results[name]["cpu_seconds"]
        about = [name, run.config.task.name, run.config.model.title, kind]
        seconds = None if seconds is None else round(seconds)
        rows.append([*about, r["parameters"], r["steps"], seconds])
    columns = ["run", "task", "model", "kind", "parameters", "steps", "CPU seconds"]
    return Table("Runs", columns, rows, name="runs")


def _scores_table(runs: dict[str, Run], results: dict[str, dict[str, Any]]) -> Table:
    lengths = {name: _validation_scores(result) for name, result in results.items()}
    ranges = sorted({pair for scores in lengths.values() for pair in scores})
    majorities = {name: _majorities(run, results[name]) for name, run in runs.items()}
    above_chance = [pair for pair in ranges if any(pair in found for found in majorities.values())]
    rows: list[list[Cell]] = []
    for name, r in results.items():
        found = _horizon(r)
        horizon = None
        if found is not None:
            horizon = "none" if found[0] is None else f"{found[0]:,}"
            horizon += " or more" if found[0] == found[1] else ""
        validation = [lengths[name].get(pair) for pair in ranges]
        baselines = [majorities[name].get(pair) for pair in above_chance]
        rows.append([name, r["train_loss"], r["train_accuracy"], *validation, *baselines, horizon])
    scored = [f"validation {lengths_text(*pair)}" for pair in ranges]
    note = (
        "Loss and accuracy are those of the last logged training batch. Validation scores are the "
        "last ones, scaled: chance is 0. The horizon is the longest length up to which the "
        "accuracy stays at 0.99 or above."
    )
    if above_chance:
        note += f" {BASELINE_NOTE}"
    scored += [f"{BASELINE} {lengths_text(*pair)}" for pair in above_chance]
    columns = ["run", "training loss", "training accuracy", *scored, "horizon"]
    return Table("Scores", columns, rows, note, name="scores")


def _validation_scores(result: Result) -> dict[tuple[int, int], float]:
    """Return the last validation score for each range of lengths."""
    return {(v["min_length"], v["max_length"]): v["scaled"] for v in result["validation"]}


def _majorities(run: Run, result: Result) -> dict[tuple[int, int], float]:
    """Return the scaled majority baseline of each range of lengths where it beats chance."""
    chance = score_chance(run.config.task)
    found = {
        (v["min_length"], v["max_length"]): scaled_majority(v, chance) for v in result["validation"]
    }
    return {pair: level for pair, level in found.items() if level is not None}


def _differences(runs: dict[str, Run]) -> list[Table]:
    """Return a table of the options that differ; none if no option does."""
    options = [flat(run.config.to_json()) for run in runs.values()]
    names = varying(options)
    if not names:
        return []
    rows = [[n, *(option_text(one.get(n)) for one in options[:COMPARED])] for n in names]
    note = f"The first {COMPARED} of {len(runs)} runs." if len(runs) > COMPARED else ""
    columns = ["option", *list(runs)[:COMPARED]]
    return [Table("Options that differ", columns, rows, note, name="configurations")]


def _figures(runs: dict[str, Run], results: dict[str, dict[str, Any]]) -> list[Figure]:
    groups = {name: [result] for name, result in results.items()}
    tops = {run.config.training.max_length for run in runs.values()}
    trained = max(tops) if len(tops) == 1 else None
    found = [
        ("length", length_figure("Accuracy against length", groups, trained)),
        ("loss", learning_figure("Training loss against steps", groups, "loss")),
        ("training-accuracy", learning_figure("Training accuracy against steps", groups)),
        ("spectrum", spectrum_figure("Eigenvalues of the trained models", groups)),
    ]
    drawn = [replace(figure, name=name) for name, figure in found if figure is not None]
    return drawn + validation_figures("Validation", groups)
