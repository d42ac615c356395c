"""`leaderboard`: every mixer of the package on three tasks, in both ranges, by one protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping

from statetrack.recipes import presets
from statetrack.recipes.leaderboard_runs import TASKS, LeaderboardTask, entries, paper_conv
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register
from statetrack.recipes.selection import (
    Entry,
    Score,
    evaluated,
    intervals_disjoint,
    not_judged,
    spread_of,
)
from statetrack.report.document import Cell, Document, Figure, Table
from statetrack.report.evaluation import ABOVE_CHANCE, BASELINE
from statetrack.report.results import length_figure, spectrum_figure
from statetrack.report.spread import CLAIM_SEEDS, Spread
from statetrack.sweep.job import Job
from statetrack.tasks import Task
from statetrack.training import length_range
from statetrack.training.evaluate import scaled


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List all runs."""
    return [job for entry in entries(settings) for job in entry.jobs(results)]


def document(settings: Settings, results: Results) -> Document:
    """Make the table of all models, one table and figure per task, and the comparisons."""
    by_task: dict[str, dict[str, Entry]] = {name: {} for name in TASKS}
    for entry in entries(settings):
        by_task[entry.column][entry.title] = entry
    return Document(
        name="leaderboard",
        title=RECIPE.title,
        summary=_summary(by_task, results),
        tables=[
            _overview(by_task, settings, results),
            *(_detail(name, row, settings, results) for name, row in by_task.items()),
        ],
        figures=[f for name, row in by_task.items() for f in _figures(name, row, results)],
        notes=_notes(settings),
        facts=facts("leaderboard", settings, jobs(settings, results), results),
        configs={
            f"{name}, {title}": entry.reported_jobs(results)[0].config.to_json()
            for name, row in by_task.items()
            for title, entry in row.items()
        },
    )


def _measures(test: LeaderboardTask) -> dict[str, Score]:
    """Return the scores that the table shows, by column; models are ranked by the first."""
    fields = {"scaled": "", "token_accuracy": " tokens"}
    sequence = " sequences" if test.task.metric == "sequence" else ""
    return {
        f"{lengths}{fields[field] or sequence}": evaluated(lengths, field)
        for lengths, field in (test.score, *test.also)
    }


def _majority(
    test: LeaderboardTask, settings: Settings, lengths: str, field: str = "scaled"
) -> float | None:
    """Return the scaled score of the majority baseline: 0 unless a constant answer beats chance.

    None for shares of right tokens, of which it is not known.
    """
    task = test.paper_task if settings.scale == "paper" else test.task
    if field != "scaled":
        return None
    if task.metric == "sequence":
        return 0.0
    score = float(scaled(task.majority(*length_range(lengths)), task.chance))
    return score if score > ABOVE_CHANCE else 0.0


def _overview(
    by_task: Mapping[str, Mapping[str, Entry]], settings: Settings, results: Results
) -> Table:
    heads, rows = ["model"], []
    for name, test in TASKS.items():
        heads += [f"{name} {label}" for label in _measures(test)]
    for title in next(iter(by_task.values())):
        row: list[Cell] = [title]
        for name, test in TASKS.items():
            done = by_task[name][title].reported(results)
            spreads = [spread_of(done, score) for score in _measures(test).values()]
            row += [None if s is None else s.cell(s.mean) for s in spreads]
        rows.append(row)
    levels = [
        _majority(test, settings, lengths, field)
        for test in TASKS.values()
        for lengths, field in (test.score, *test.also)
    ]
    if any(levels):
        rows.append([BASELINE, *levels])
    note = (
        "Means over seeds. Scaled accuracy on lengths (chance is 0); for S5 swaps, the share of "
        "sequences with every position right at a length, and of right tokens."
    )
    return Table("Every mixer", heads, rows, note, name="leaderboard")


def _detail(name: str, row: Mapping[str, Entry], settings: Settings, results: Results) -> Table:
    lengths, _ = TASKS[name].score
    heads = ["model", "parameters", "seeds", "mean", "low", "high", "best", "median", "MAD"]
    ranked: list[tuple[tuple[bool, float], list[Cell]]] = []
    for title, entry in row.items():
        spread, done = entry.spread(results), entry.reported(results)
        seeds = entry.seeds_text(results)
        if spread is None:
            ranked.append(((False, -math.inf), [title, None, seeds, *[None] * 6]))
            continue
        size = next((r["parameters"] for r in done if r.get("parameters")), None)
        ends = spread.interval or (None, None)
        line: list[Cell] = [title, size, seeds, spread.mean, *ends, spread.best, spread.median,
                            spread.mad]  # fmt: skip
        ranked.append(((not spread.failed, spread.mean), line))
    ranked.sort(key=lambda pair: pair[0], reverse=True)
    rows = [line for _, line in ranked]
    if level := _majority(TASKS[name], settings, lengths):
        rows.append([BASELINE, None, None, level, *[None] * 5])
    note = (
        "Best mean first, models of which a run failed last; low and high are the 95 % interval of "
        "the mean over seeds."
    )
    return Table(f"{name[0].upper()}{name[1:]}: length {lengths}", heads, rows, note)


def _figures(name: str, row: Mapping[str, Entry], results: Results) -> list[Figure]:
    """Draw the models in [-1,1] and all others separately: one figure would have too many lines."""
    done = {title: found for title, entry in row.items() if (found := entry.reported(results))}
    wide = {title: found for title, found in done.items() if "[-1,1]" in title}
    others = {title: found for title, found in done.items() if title not in wide}
    made = []
    for which, groups in (("[-1,1]", wide), ("[0,1], or no switch", others)):
        heading = f"{name[0].upper()}{name[1:]}, {which}"
        made += [
            length_figure(
                f"{heading}: accuracy against length", groups, TASKS[name].trained, seeds=False
            ),
            spectrum_figure(f"{heading}: eigenvalues after training", groups),
        ]
    return [figure for figure in made if figure is not None]


def _summary(by_task: Mapping[str, Mapping[str, Entry]], results: Results) -> list[str]:
    sentences = []
    for name, row in by_task.items():
        judged = {t: entry for t, entry in row.items() if not entry.failed(results)}
        spreads = {t: s for t, entry in judged.items() if (s := entry.spread(results)) is not None}
        failures = not_judged(row.values(), results)
        if not spreads:
            if failures:
                sentences.append(f"{name[0].upper()}{name[1:]}: no verdict.{failures}")
            continue
        top = max(spreads, key=lambda title: spreads[title].mean)
        level = [
            t for t in spreads if t != top and not intervals_disjoint(spreads[t], spreads[top])
        ]
        rest = "above all others with disjoint intervals"
        if level:
            rest = f"no difference to {', '.join(level)} is claimed"
        if spreads[top].claim_interval is None:
            rest = f"fewer than {CLAIM_SEEDS} seeds, so no difference is claimed"
        lengths, _ = TASKS[name].score
        sentences.append(
            f"{name[0].upper()}{name[1:]}, length {lengths}: {top} has the best mean, "
            f"{spreads[top].mean:.3f}; {rest}.{failures}"
        )
        sentences.append(_switch_sentence(name, spreads))
    return [text for text in sentences if text] or ["No run is done yet."]


def _switch_sentence(name: str, spreads: Mapping[str, Spread]) -> str:
    """Say for which mixers [-1,1] differs from [0,1] with disjoint intervals."""
    better: list[str] = []
    worse: list[str] = []
    level: list[str] = []
    for title, wide in spreads.items():
        narrow = spreads.get(title.replace("[-1,1]", "[0,1]"))
        if "[-1,1]" not in title or narrow is None:
            continue
        mixer = title.replace(" [-1,1]", "")
        if not intervals_disjoint(wide, narrow):
            level.append(mixer)
        else:
            (better if wide.mean > narrow.mean else worse).append(mixer)
    if not better + worse + level:
        return ""
    parts = [
        f"{word}: {', '.join(names)}"
        for word, names in (
            ("above [0,1] with disjoint intervals", better),
            ("below [0,1] with disjoint intervals", worse),
            ("no difference is claimed", level),
        )
        if names
    ]
    return f"[-1,1] on {name}: {'; '.join(parts)}."


def _notes(settings: Settings) -> list[str]:
    notes = [
        "One protocol: on a task every mixer has the same width, number of layers, heads, "
        "convolution (if it has one), steps, batch and learning rate; nothing is chosen per model. "
        "Mamba, mLSTM, sLSTM, the diagonal RNN and full matrices have the block of the code base "
        "that they come from, which differs from the default block (RMSNorm, SwiGLU, residual) in "
        "norm, MLP or residual. All other mixers, Mamba2 among them, have the default block. Full "
        "matrices read one-hot tokens and have one layer of the vocabulary's width.",
    ]
    for name, test in TASKS.items():
        t = test.training
        notes.append(
            f"{name[0].upper()}{name[1:]}{_options(test.task)}: width {test.width}, layers "
            f"{test.layers}, heads {test.heads}, convolution {test.conv or 'none'}, lengths "
            f"{t.min_length}-{t.max_length}, {t.steps:,} steps of batch {t.batch_size}, learning "
            f"rate {t.lr:g}{_stages(test)}."
        )
    if settings.scale == "paper":
        return [notes[0], _paper_note()]
    return notes


def _paper_note() -> str:
    """State which settings are the paper's, and layers and convolution on each task."""
    parts = []
    for name, test in TASKS.items():
        paper = presets.paper("delta_net", test.paper_task.name)
        layers = paper.model.num_layers
        parts.append(
            f"{name}{_options(test.paper_task)}: {layers} layer{'s' if layers > 1 else ''}, "
            f"convolution {paper_conv(paper) or 'none'}"
        )
    return (
        "Training, width, number of layers and convolution are the paper's for DeltaNet, for every "
        f"mixer. {parts[0][0].upper()}{'; '.join(parts)[1:]}."
    )


def _stages(test: LeaderboardTask) -> str:
    if not test.stages:
        return ""
    parts = [f"{s.steps} up to length {s.max_length or test.trained}" for s in test.stages]
    return f", in stages: {', '.join(parts)}"


def _options(task: Task) -> str:
    modulus = getattr(task, "modulus", None)
    return "" if modulus is None else f" modulo {modulus}"


RECIPE = register(
    Recipe(
        name="leaderboard",
        aliases=(),
        title="Every mixer on parity, S5 swaps and modular arithmetic",
        jobs=jobs,
        document=document,
    )
)
