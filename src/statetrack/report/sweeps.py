"""The report of a user's own sweep."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statetrack.errors import UserError
from statetrack.files import read_json
from statetrack.report.configs import Options, distinguishing, flat, option_text
from statetrack.report.document import Cell, Document, Figure, Table
from statetrack.report.evaluation import BASELINE, BASELINE_NOTE, chance_level, scaled_majority
from statetrack.report.results import (
    Groups,
    Result,
    environment_facts,
    learning_figure,
    length_figure,
    spectrum_figure,
    validation_figures,
)
from statetrack.report.spread import Spread
from statetrack.sweep.engine import JOB, SWEEP
from statetrack.sweep.job import JOB_SCHEMA
from statetrack.sweep.work import RESULT, read_result

# options that do not distinguish the rows of the grid
IGNORED = (
    "name", "seconds", "schema", "config.schema", "config.training.seed", "config.training.device",
    "config.training.compile",
)  # fmt: skip


@dataclass(frozen=True)
class ListedJob:
    """A job of a sweep, and its result if it is done."""

    job: Mapping[str, Any]  # the content of job.json
    result: dict[str, Any] | None

    @property
    def done(self) -> bool:
        """Whether it ended without an error."""
        return self.result is not None and self.result["status"] == "done"

    @property
    def options(self) -> Options:
        """The options that may vary in the grid; the names of task and mixer come first."""
        found = {k: v for k, v in flat(self.job).items() if k not in IGNORED}
        first = ("config.task.name", "config.model.mixer.name")
        return {k: found[k] for k in (*(f for f in first if f in found), *found)}


def read_sweep(folder: Path) -> list[ListedJob]:
    """Read the jobs of a sweep and the results of those that are done, in the order of names."""
    found = []
    for path in sorted((Path(folder) / "jobs").glob(f"*/{JOB}")):
        job = read_json(path)
        if not isinstance(job, dict) or job.get("schema") != JOB_SCHEMA:
            raise UserError(f"{path} does not have schema {JOB_SCHEMA}, which this version reads")
        done = path.with_name(RESULT).exists()
        found.append(ListedJob(job, read_result(path.parent) if done else None))
    if not found:
        raise UserError(f"{folder} has no jobs yet")
    return found


def sweep_document(folder: Path) -> Document:
    """Return the report of a sweep.

    Args:
        folder: of the sweep.

    Returns:
        The grid: for each combination of the options that vary the best, median and interval over
        seeds on every range of lengths; curves, spectra, failures and CPU seconds.

    Raises:
        UserError: The folder has no jobs, or a file cannot be read.
    """
    listed = read_sweep(folder)
    names = distinguishing([one.options for one in listed])
    groups: dict[tuple[str, ...], list[ListedJob]] = {}
    for one in listed:
        key = tuple(option_text(one.options.get(name)) for name in names)
        groups.setdefault(key, []).append(one)
    done = [one for one in listed if one.done]
    failed = [one for one in listed if one.result is not None and not one.done]
    counts = f"{len(done)} of {len(listed)} runs are done, {len(failed)} failed."
    tables = [_grid(names, groups)]
    if failed:
        rows = [[one.job["name"], _seed(one), (one.result or {})["error"]] for one in failed]
        tables.append(Table("Failures", ["run", "seed", "error"], rows, name="failures"))
    return Document(
        "report",
        f"Sweep {Path(folder).resolve().name}",
        [counts, *_verdict(names, groups)],
        tables,
        _figures({_label(names, key): _results(g) for key, g in groups.items()}, listed),
        facts=_facts(folder, listed),
        configs={f"{o.job['name']}, seed {_seed(o)}": o.job["config"] for o in listed},
    )


def short_name(name: str) -> str:
    """Shorten the name of an option to its last part, or to the part before `name`.

    >>> [short_name(f"config.{name}") for name in ("training.lr", "model.mixer.name", "task.name")]
    ['lr', 'mixer', 'task']
    """
    parts = name.split(".")
    return parts[-2] if parts[-1] == "name" and len(parts) > 1 else parts[-1]


def _seed(one: ListedJob) -> int:
    return int(one.job["config"]["training"]["seed"])


def _label(names: Sequence[str], key: Sequence[str]) -> str:
    """Return the text of the legend, such as delta_net [-1,1], lr 0.001."""
    text = ""
    for name, value in zip(names, key, strict=True):
        if short_name(name) == "allow_neg_eigval" and value:
            text += " [-1,1]" if value == "True" else " [0,1]"
        elif value:
            text += f", {value}" if name.endswith(".name") else f", {short_name(name)} {value}"
    return text.strip(", ") or "all runs"


def _results(group: Sequence[ListedJob]) -> list[Result]:
    return [one.result for one in group if one.result is not None and one.done]


def _ranges(results: Sequence[Result], which: str) -> list[str]:
    """Return the lengths on which any of the models was evaluated."""
    measured = [(r.get(which) or {}).get("evaluations", {}) for r in results]
    return list(dict.fromkeys(lengths for found in measured for lengths in found))


def _spread(results: Sequence[Result], which: str, lengths: str) -> Spread | None:
    measured = [(r.get(which) or {}).get("evaluations", {}).get(lengths) for r in results]
    scores = tuple(float(m["scaled"]) for m in measured if m is not None)
    return Spread(scores) if scores else None


def _columns(groups: Mapping[Any, Sequence[ListedJob]]) -> list[tuple[str, str]]:
    """Return what was evaluated: "trained" or "hardened" models, and on which lengths."""
    results = [r for group in groups.values() for r in _results(group)]
    return [(w, lengths) for w in ("trained", "hardened") for lengths in _ranges(results, w)]


def _grid(names: Sequence[str], groups: Mapping[tuple[str, ...], Sequence[ListedJob]]) -> Table:
    measured = _columns(groups)
    head = [*map(short_name, names), "runs"]
    for which, lengths in measured:
        place = f"{lengths}{', hardened' if which == 'hardened' else ''}"
        head += [f"best at {place}", f"median at {place}", f"95 % of the mean at {place}"]
    majorities = _majorities(groups)
    above_chance = [
        lengths
        for lengths in dict.fromkeys(lengths for _, lengths in measured)
        if any(lengths in found for found in majorities.values())
    ]
    head += [f"{BASELINE} at {lengths}" for lengths in above_chance]
    rows: list[list[Cell]] = []
    for key, group in groups.items():
        results = _results(group)
        row: list[Cell] = [*key, len(results)]
        for which, lengths in measured:
            s = _spread(results, which, lengths)
            row += [None] * 3 if s is None else [s.best, s.median, s.interval_text or None]
        row += [majorities[key].get(lengths) for lengths in above_chance]
        stopped = Counter(str(r["stopped"]) for r in results if r.get("stopped"))
        row.append(", ".join(f"{reason} {n}" for reason, n in stopped.items()) or None)
        seconds = [r["cpu_seconds"] for r in results if r.get("cpu_seconds") is not None]
        rows.append([*row, round(sum(seconds) / len(seconds)) if seconds else None])
    note = "Accuracies are scaled: chance is 0. Intervals are of the mean over seeds."
    if above_chance:
        note += f" {BASELINE_NOTE}"
    columns = [*head, "stopped early", "CPU seconds a run"]
    return Table("Accuracy by option", columns, rows, note, name="grid")


def _majorities(
    groups: Mapping[tuple[str, ...], Sequence[ListedJob]],
) -> dict[tuple[str, ...], dict[str, float]]:
    """Return for each group the scaled majority baseline by lengths, where it beats chance.

    What guessing scores is found from all evaluations of a task. It is unknown, and there is no
    baseline, if all of them are perfect.
    """
    by_task: dict[str, list[Any]] = {}
    for one in itertools.chain(*groups.values()):
        by_task.setdefault(_task(one), []).extend(e for _, e in _evaluations(_results([one])))
    chances = {task: chance_level(found) for task, found in by_task.items()}
    made: dict[tuple[str, ...], dict[str, float]] = {}
    for key, group in groups.items():
        levels = {
            lengths: scaled_majority(e, chances[_task(group[0])])
            for lengths, e in _evaluations(_results(group))
        }
        made[key] = {lengths: level for lengths, level in levels.items() if level is not None}
    return made


def _evaluations(results: Sequence[Result]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return every evaluation with its lengths, of trained and hardened models."""
    measured = [(r.get(which) or {}) for r in results for which in ("trained", "hardened")]
    return [pair for found in measured for pair in found.get("evaluations", {}).items()]


def _task(one: ListedJob) -> str:
    """Return the task and its options as text."""
    return str(flat(one.job["config"]["task"]))


def _verdict(
    names: Sequence[str], groups: Mapping[tuple[str, ...], Sequence[ListedJob]]
) -> list[str]:
    """Say which combination has the highest median on the first range."""
    measured = _columns(groups)
    if not measured or len(groups) < 2:
        return []
    spreads = {key: _spread(_results(group), *measured[0]) for key, group in groups.items()}
    known = {key: s for key, s in spreads.items() if s is not None}
    best = max(known, key=lambda key: known[key].median)
    score = f"{known[best].median:.3f} ({len(known[best].scores)} runs)"
    where = f"Highest median at {measured[0][1]}: {_label(names, best)}"
    return [f"{where}, scaled accuracy {score}."]


def _figures(groups: Groups, listed: Sequence[ListedJob]) -> list[Figure]:
    tops = {one.job["config"]["training"]["max_length"] for one in listed}
    trained = max(tops) if len(tops) == 1 else None
    found = [
        ("length", length_figure("Accuracy against length", groups, trained)),
        (
            "length-hardened",
            length_figure("Accuracy against length, hardened", groups, trained, which="hardened"),
        ),
        ("loss", learning_figure("Training loss against steps", groups, "loss")),
        ("training-accuracy", learning_figure("Training accuracy against steps", groups)),
        ("spectrum", spectrum_figure("Eigenvalues of the trained models", groups)),
    ]
    drawn = [replace(figure, name=name) for name, figure in found if figure is not None]
    return drawn + validation_figures("Validation", groups)


def _facts(folder: Path, listed: Sequence[ListedJob]) -> dict[str, Any]:
    file = Path(folder) / SWEEP
    about = read_json(file) if file.exists() else {}
    results = [one.result for one in listed if one.result is not None]
    facts = {
        "command": about.get("command"),
        "seeds": sorted({_seed(one) for one in listed}),
        "CPU seconds": float(sum(r.get("cpu_seconds") or 0 for r in results)),
        **environment_facts(results),
    }
    return {name: value for name, value in facts.items() if value is not None}
