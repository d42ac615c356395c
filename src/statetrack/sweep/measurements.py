"""Train the model of a job and evaluate it; harden it and evaluate the hardened model.

Training resumes from the last checkpoint; the measurements after it start again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statetrack.compiler import compile
from statetrack.compiler.theorem6_model import theorem6_model
from statetrack.errors import UserError
from statetrack.hardening import harden
from statetrack.hardening.harden import find_roundings
from statetrack.hardening.runs import compare_automata, learned, validation_batch, write_run
from statetrack.models import SequenceModel, count_parameters
from statetrack.sweep.job import THEOREM_6, Job
from statetrack.sweep.pool import Report
from statetrack.sweep.spectrum import sampled_spectrum
from statetrack.sweep.work import Stopwatch
from statetrack.training import (
    Callback,
    Curve,
    Progress,
    Run,
    curve,
    evaluate,
    finite_training_set,
    length_range,
    train,
)

POINTS = 200  # of a curve
REPORT_EVERY = 0.2  # seconds between reports of progress


def describe(job: Job) -> dict[str, Any]:
    """Return the fields of a result that are known before the job is done."""
    config = job.config
    pattern = config.model.pattern
    switches = {m.allow_neg_eigval for m in pattern if not m.no_switch}
    return {
        "task": config.task.name,
        "title": config.model.title,
        "mixer": ",".join(mixer.name for mixer in pattern),
        "num_layers": config.model.num_layers,
        "allow_neg_eigval": switches.pop() if len(switches) == 1 else None,
        "lr": config.training.lr,
        "seed": config.training.seed,
    }


def measure(
    job: Job, folder: Path, report: Report, callbacks: Sequence[Callback]
) -> dict[str, Any]:
    """Train and measure; return the fields of a result that are known afterwards."""
    run = _train(job, folder, report, callbacks)
    stopwatch = Stopwatch()  # of the measurements: the metrics have the time of training
    model = run.model(device=job.device)
    rows = run.metrics()
    steps = [row for row in rows if row["kind"] == "train"]
    harden_facts, hardened = _harden(job, run, folder / "hardened") if job.harden else (None, None)
    facts = {
        "parameters": count_parameters(job.config.model),
        "steps": run.checkpoint_steps()[-1],
        "stopped": run.stopped,
        "train_loss": steps[-1]["loss"] if steps else None,  # stopped before the first row
        "train_accuracy": steps[-1]["accuracy"] if steps else None,
        "trained": _evaluations(job, model, job.lengths),
        "hardened": None
        if hardened is None
        else _evaluations(job, hardened, (*job.lengths, *job.hardened_lengths)),
        "harden": harden_facts,
        "validation": [_validation(row) for row in rows if row["kind"] == "validation"],
        "learning": _learning(steps),
        "spectrum": sampled_spectrum(job.config, model) if job.spectrum else None,
    }
    training = next(row for row in rows[::-1] if "cpu_seconds" in row)
    times = stopwatch.elapsed()
    return facts | {name: round(training[name] + spent, 2) for name, spent in times.items()}


def _train(job: Job, folder: Path, report: Report, callbacks: Sequence[Callback]) -> Run:
    """Train the job's model, from where an earlier attempt stopped."""
    reported = 0.0

    def throttled(progress: Progress) -> None:
        nonlocal reported
        if progress.step in (1, progress.steps) or time.perf_counter() - reported > REPORT_EVERY:
            reported = time.perf_counter()
            report(progress)

    resume = bool(Run(folder / "run", job.config).checkpoint_steps())
    start = None
    if not resume:
        _empty(folder / "run")  # an attempt that was cut short before its first checkpoint
        if job.compiled is not None:
            start = _compile(job, _empty(folder / "compiled"))
    return train(
        job.config,
        folder / "run",
        resume=resume,
        init_from=start,
        callbacks=callbacks,
        on_progress=throttled,
    )


def _compile(job: Job, folder: Path) -> Path:
    """Write the weights that a job starts from into a run folder, with noise added."""
    assert job.compiled is not None
    config, seed = job.config, job.config.training.seed
    net = None
    if job.compiled == THEOREM_6:
        model = theorem6_model(config.model, config.task, seed)
    else:
        net = compile(job.compiled, "gated_deltaproduct")
        model = net.model
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += job.noise * torch.randn(parameter.shape, generator=generator)
    if net is not None:
        return net.save(folder)
    Run.create(folder, config).save(0, model)
    return folder


def _empty(folder: Path) -> Path:
    """Remove a folder that a killed process may have left half-written."""
    if folder.exists():
        shutil.rmtree(folder)
    return folder


def _harden(job: Job, run: Run, folder: Path) -> tuple[dict[str, Any], SequenceModel | None]:
    """Harden a run; return the facts, and the new model if there is one."""
    began = time.perf_counter()
    model, made, automaton = run.model(device=job.device), None, None
    try:
        find_roundings(model)
        validation = validation_batch(run.config)
        skill = learned(model, run.config.task, validation)
        if skill:
            result = harden(model, validation, orders=job.orders)
            reason = result.reason
            if result.changed:
                automata = compare_automata(result, run.config)
                step = run.checkpoint_steps()[-1]
                write_run(_empty(folder), run.config, step, result, automata)
                made, automaton = result.model, automata.to_dict()
        else:
            reason = f"the model has not learned {run.config.task.name}: {skill}"
    except UserError as error:  # a layer that cannot be hardened
        reason = str(error)
    seconds = round(time.perf_counter() - began, 2)
    facts = {"changed": made is not None, "reason": reason, "seconds": seconds}
    return {**facts, "automaton": automaton}, made


def _evaluations(job: Job, model: SequenceModel, lengths: Sequence[str]) -> dict[str, Any]:
    """Measure a model on some lengths and along the job's curve."""
    task = job.config.task
    options: dict[str, Any] = {
        "data_seed": job.config.training.data_seed,
        "exclude": finite_training_set(job.config),
    }
    evaluations = {}
    for text in lengths:
        ends = length_range(text)
        found = evaluate(model, task, ends, samples=job.samples_at(ends[1]), **options)
        evaluations[text] = found.to_json(positions=False)
    traced = None
    if job.curve is not None:
        traced = _thinned(
            curve(model, task, job.curve, samples=job.samples_at(job.curve), **options)
        )
    return {"evaluations": evaluations, "curve": traced}


def _thinned(full: Curve) -> dict[str, Any]:
    """Keep at most POINTS lengths of a curve, for plots on a linear or a logarithmic axis."""
    last = len(full.lengths) - 1
    kept = np.arange(last + 1)
    if last >= POINTS:
        spaces = np.linspace(0, last, POINTS // 2), np.geomspace(1, last, POINTS // 2) - 1
        kept = np.unique(np.concatenate(spaces).round().astype(int))
    plain = full.to_json()
    return {
        name: [round(value[i], 6) for i in kept] if isinstance(value, list) else value
        for name, value in plain.items()
    }


def _validation(row: dict[str, Any]) -> dict[str, Any]:
    names = ("step", "min_length", "max_length", "score", "scaled", "low", "high")
    return {name: row[name] for name in names}


def _learning(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Keep at most POINTS rows of training."""
    if not rows:
        return {"step": [], "loss": [], "accuracy": []}
    kept = np.unique(np.linspace(0, len(rows) - 1, POINTS).round().astype(int))
    return {name: [rows[i][name] for i in kept] for name in ("step", "loss", "accuracy")}
