"""The paper's table and the verdicts on state tracking."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from statetrack.lm.harness.evaluation import ModelScores, Score, read_scores
from statetrack.lm.harness.folder import TaskAbout
from statetrack.lm.harness.published import AVERAGE, COLUMNS, PAPER_TASKS, TABLE_4, PublishedRow
from statetrack.lm.harness.table import paper_average, scores_document
from statetrack.report.document import Document

PACK = [TaskAbout(f"statetrack_parity_{n}", "parity", 100, n, 0.5) for n in (4, 8)]


def document(
    models: list[ModelScores], tasks: list[TaskAbout], *missing: str, limit: int | None = None
) -> Document:
    chosen: Any = SimpleNamespace(tasks=tasks, missing=missing)
    return scores_document(models, chosen, {}, limit)


def as_scores(row: PublishedRow) -> list[Score]:
    """A row of the paper as scores of ours."""
    return [
        Score(c.task, c.metric, float(text) / (1 if "ppl" in c.title else 100), 0.01, None, 100)
        for c, text in zip(COLUMNS, row.numbers, strict=True)
        if c is not AVERAGE
    ]


@pytest.mark.parametrize("row", TABLE_4, ids=lambda row: f"{row.model}, {row.trained_on}")
def test_averages_are_those_of_the_paper(row: PublishedRow) -> None:
    average = paper_average(as_scores(row))
    assert average is not None
    assert 100 * (average.value or 0) == pytest.approx(float(row.numbers[8]), abs=0.06)
    assert average.error == pytest.approx(0.01 / 6**0.5)


def test_our_row_reads_as_the_papers() -> None:
    row = TABLE_4[4]
    tasks = [TaskAbout(name, name, 100) for name in PAPER_TASKS]
    made = document([ModelScores("ours", as_scores(row), {})], tasks, limit=100)
    assert made.summary == [
        f"ours: {row.numbers[8]} % ± 0.4 on average of the paper's tasks, chance 0.0 % (of each "
        "task only the first 100 documents)."
    ]
    table = made.tables[0]
    assert [str(cell).split(" ")[0] for cell in table.rows[1][2:]] == list(row.numbers)
    assert tuple(table.rows[2:][4][2:]) == row.numbers  # beside the paper's own


def test_an_average_needs_every_set() -> None:
    scores = [score for score in as_scores(TABLE_4[0]) if score.task != "piqa"]
    assert paper_average(scores) is None
    tasks = [TaskAbout("lambada_openai", "lambada_openai", 100)]
    made = document([ModelScores("ours", scores, {})], tasks, "piqa")
    assert made.tables[0].rows[1][2 + COLUMNS.index(AVERAGE)] is None
    assert "Without data: piqa." in made.tables[0].note
    assert made.summary == [
        "ours: no average of the paper's six accuracies, as some are missing. Without data: piqa."
    ]


def test_only_scores_far_above_chance_are_named() -> None:
    scores = [
        Score(PACK[0].name, "acc", 0.62, 0.05, 0.5, 100),
        Score(PACK[1].name, "acc", 0.67, 0.05, 0.5, 100),
    ]
    made = document([ModelScores("ours", scores, {})], PACK)
    assert made.summary[0].startswith("ours: 1 of 2")
    assert "parity at length 8." in made.summary[0]
    assert made.tables[0].rows[0] == ["parity", 4, 100, "50.0", "62.0 ± 5.0"]
    (figure,) = made.figures
    assert [series.label for series in figure.series] == ["ours", "chance"]


def test_numbers_that_are_not_finite_are_none() -> None:
    found = {
        "results": {"x": {"alias": "x", "perplexity,none": float("inf"), "acc,none": 1,
                          "perplexity_stderr,none": "N/A", "acc_stderr,none": 0.5}},
        "n-samples": {"x": {"effective": 3}},
    }  # fmt: skip
    assert list(read_scores(TaskAbout("x", "x", 3, chance=0.25), found)) == [
        Score("x", "perplexity", None, None, None, 3),
        Score("x", "acc", 1.0, 0.5, 0.25, 3),
    ]
