"""The report of an evaluation: the paper's table, the pack and every score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from statetrack.lm.harness.evaluation import ModelScores, Score
from statetrack.lm.harness.folder import TaskAbout
from statetrack.lm.harness.published import AVERAGE, COLUMNS, ERRORS, PAPER_TASKS, TABLE_4, Column
from statetrack.lm.harness.selection import Selection
from statetrack.report.document import Cell, Document, Figure, Series, Table

NORMAL_95 = 1.96


def scores_document(
    models: Sequence[ModelScores],
    selection: Selection,
    facts: Mapping[str, Any],
    limit: int | None = None,
) -> Document:
    """Make the report of an evaluation.

    Args:
        models: The scores of each model.
        selection: The tasks that were evaluated.
        facts: The command, versions and hardware.
        limit: How many documents of each task were evaluated; None for all.
    """
    paper = [task for task in selection.tasks if task.name in PAPER_TASKS]
    pack = [task for task in selection.tasks if task.length is not None]
    others = [task for task in selection.tasks if task not in (*paper, *pack)]
    guessable = [task for task in others if task.chance]
    tables = [_paper_table(models, selection)] if paper else []
    tables += [_pack_table(models, pack)] if pack else []
    tables += [_scores_table("Other tasks", models, others)] if others else []
    tables.append(_scores_table("All scores", models, selection.tasks))
    return Document(
        name="lm-eval",
        title="Language models on lm-evaluation-harness",
        summary=[
            *([_average_verdict(model, selection, limit) for model in models] if paper else []),
            *(
                [_chance_verdict(model, pack, "state-tracking", limit) for model in models]
                if pack
                else []
            ),
            *(
                [_chance_verdict(model, guessable, "other", limit) for model in models]
                if guessable
                else []
            ),
        ],
        tables=tables,
        figures=_pack_figures(models, pack),
        notes=list(_notes(models)),
        facts=dict(facts),
    )


def paper_average(scores: Sequence[Score]) -> Score | None:
    """Return the mean of the accuracies that the paper averages; None if one is missing."""
    found = _by_metric(scores)
    parts = [found.get((c.task, c.metric)) for c in COLUMNS if c.averaged]
    values = [part.value for part in parts if part is not None and part.value is not None]
    if len(values) < len(parts):
        return None
    errors = [part.error or 0.0 for part in parts if part]
    chances = [part.chance or 0.0 for part in parts if part]
    count = len(parts)
    error = math.hypot(*errors) / count  # the sets are independent
    return Score("", "", sum(values) / count, error, sum(chances) / count, 0)


def _by_metric(scores: Sequence[Score]) -> dict[tuple[str, str], Score]:
    return {(score.task, score.metric): score for score in scores}


def _paper_table(models: Sequence[ModelScores], selection: Selection) -> Table:
    rows: list[list[Cell]] = []
    chances: dict[str, str] = {}
    for model in models:
        found = _by_metric(model.scores)
        cells: list[Cell] = []
        for column in COLUMNS:
            average = column is AVERAGE
            score = paper_average(model.scores) if average else found.get(column[1:3])
            cells.append(None if score is None else _cell(score, column))
            if score is not None and score.chance is not None:
                chances[column.title] = _percent(score.chance)
        rows.append([model.model, "this run", *cells])
    chance = ["chance", "", *(chances.get(column.title) for column in COLUMNS)]
    published = [[row.model, f"paper: {row.trained_on}", *row.numbers] for row in TABLE_4]
    missing = f" Without data: {', '.join(selection.missing)}." if selection.missing else ""
    return Table(
        "The paper's tasks",
        ["model", "source", *(column.title for column in COLUMNS)],
        [chance, *rows, *published],
        note=(
            "Perplexities (ppl), and shares of right answers in per cent, with standard errors; "
            "acc_n compares log-probabilities per character. Avg is the mean of the six accuracies."
            f"{missing}"
        ),
        name="paper-tasks",
    )


def _cell(score: Score, column: Column) -> str | None:
    if score.value is None:
        return "not finite"
    show = _perplexity if column.title.endswith("ppl") else _percent
    return show(score.value) + ("" if score.error is None else f" ± {show(score.error)}")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _perplexity(number: float) -> str:
    return f"{number:.2f}" if number < 10_000 else f"{number:.2e}"


def _pack_table(models: Sequence[ModelScores], pack: Sequence[TaskAbout]) -> Table:
    found = [_by_metric(model.scores) for model in models]
    share = Column("", "", "acc")
    rows: list[list[Cell]] = [
        [
            task.source,
            task.length,
            found[0][task.name, "acc"].documents,
            _percent(task.chance or 0.0),
            *(_cell(scores[task.name, "acc"], share) for scores in found),
        ]
        for task in pack
    ]
    return Table(
        "State tracking",
        ["task", "length", "questions", "chance", *(model.model for model in models)],
        rows,
        note=(
            "Shares of right answers in per cent, with standard errors. Chance is the accuracy of "
            "always giving the most frequent answer to questions about the same subject, or that "
            "of guessing if it is higher."
        ),
        name="state-tracking",
    )


def _average_verdict(model: ModelScores, selection: Selection, limit: int | None) -> str:
    """State the average of the paper's accuracies beside chance, and which tasks lack data."""
    average = paper_average(model.scores)
    missing = f" Without data: {', '.join(selection.missing)}." if selection.missing else ""
    if average is None or average.value is None:
        verdict = f"{model.model}: no average of the paper's six accuracies, as some are missing"
    else:
        share, error = _percent(average.value), _percent(average.error or 0.0)
        chance = f"chance {_percent(average.chance or 0.0)} %"
        verdict = f"{model.model}: {share} % ± {error} on average of the paper's tasks, {chance}"
    return f"{verdict}{_of_documents(limit)}.{missing}"


def _chance_verdict(
    model: ModelScores, tasks: Sequence[TaskAbout], kind: str, limit: int | None
) -> str:
    """State on how many tasks a model is better than chance, and name them."""
    found = _by_metric(model.scores)
    above = [task for task in tasks if found[task.name, "acc"].above_chance]
    names = (f"{t.source} at length {t.length}" if t.length else t.name for t in above)
    return (
        f"{model.model}: {len(above)} of {len(tasks)} {kind} tasks are more than {ERRORS} standard "
        f"errors above chance{_of_documents(limit)}{': ' if above else ''}{', '.join(names)}."
    )


def _of_documents(limit: int | None) -> str:
    return "" if limit is None else f" (of each task only the first {limit:,} documents)"


def _pack_figures(models: Sequence[ModelScores], pack: Sequence[TaskAbout]) -> list[Figure]:
    """Draw accuracy against length, a figure for each task with several lengths."""
    figures = []
    for source in dict.fromkeys(task.source for task in pack):
        tasks = sorted((t for t in pack if t.source == source), key=lambda t: t.length or 0)
        if len(tasks) < 2:
            continue
        x = [float(task.length or 0) for task in tasks]
        lines = []
        for model in models:
            found = _by_metric(model.scores)
            scores = [found[task.name, "acc"] for task in tasks]
            y = [score.value or 0.0 for score in scores]
            margins = [NORMAL_95 * (score.error or 0.0) for score in scores]
            low = [value - margin for value, margin in zip(y, margins, strict=True)]
            high = [value + margin for value, margin in zip(y, margins, strict=True)]
            lines.append(Series(model.model, x, y, low, high))
        lines.append(Series("chance", x, [task.chance or 0.0 for task in tasks], dashed=True))
        title = f"{source} in words"
        figures.append(Figure(title, "length", "accuracy", lines, log_x=True, y_range=(0, 1)))
    return figures


def _scores_table(title: str, models: Sequence[ModelScores], tasks: Sequence[TaskAbout]) -> Table:
    names = [task.name for task in tasks]
    rows = [
        [model.model, s.task, s.metric, s.value, s.error, s.chance, s.documents]
        for model in models
        for s in model.scores
        if s.task in names
    ]
    columns = ["model", "task", "metric", "value", "standard error", "chance", "documents"]
    return Table(title, columns, rows)


def _notes(models: Sequence[ModelScores]) -> Iterator[str]:
    for model in models:
        for task, count in model.shortened.items():
            yield (
                f"{count:,} requests of {task} were cut at the beginning, as they are longer than "
                f"{model.model} reads."
            )
