"""Table 4 of the paper: the columns of its evaluation of language models, and its numbers."""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    """A column of the table: a metric of an lm-eval task."""

    title: str
    task: str
    metric: str
    averaged: bool = False


AVERAGE = Column("Avg", "", "")  # of the columns that are averaged
COLUMNS = (
    Column("Wiki ppl", "wikitext", "word_perplexity"),
    Column("LMB ppl", "lambada_openai", "perplexity"),
    Column("LMB acc", "lambada_openai", "acc", averaged=True),
    Column("PIQA acc", "piqa", "acc", averaged=True),
    Column("Hella acc_n", "hellaswag", "acc_norm", averaged=True),
    Column("Wino acc", "winogrande", "acc", averaged=True),
    Column("ARC-e acc", "arc_easy", "acc", averaged=True),
    Column("ARC-c acc_n", "arc_challenge", "acc_norm", averaged=True),
    AVERAGE,
    Column("SWDE", "swde", "contains"),
    Column("SQuAD", "squad_completion", "contains"),
    Column("FDA", "fda", "contains"),
)
ERRORS = 3  # standard errors above chance that guessing does not reach, even in dozens of tasks
PAPER_TASKS = tuple(dict.fromkeys(c.task for c in COLUMNS if c is not AVERAGE))


class PublishedRow(NamedTuple):
    """A row of the table; perplexities, and shares in per cent."""

    trained_on: str
    model: str
    numbers: tuple[str, ...]  # as printed, by column


def _rows(trained_on: str, text: str) -> list[PublishedRow]:
    split = [line.partition(":") for line in text.strip().splitlines()]
    return [PublishedRow(trained_on, m.strip(), tuple(n.split())) for m, _, n in split]


# The rows on SlimPajama are quoted there from Yang et al. (2024).
TABLE_4 = (
    *_rows(
        "340M, 15B tokens of SlimPajama",
        """
        Transformer++:  28.39 42.69 31.0 63.3 34.0 50.4 44.5 24.2 41.2 42.2 22.1 21.4
        Mamba [0,1]:    28.39 39.66 30.6 65.0 35.4 50.1 46.3 23.6 41.8 12.4 23.0 2.1
        GLA [0,1]:      29.47 45.53 31.3 65.1 33.8 51.6 44.4 24.6 41.8 24.0 24.7 7.3
        DeltaNet [0,1]: 28.24 37.37 32.1 64.8 34.3 52.2 45.8 23.5 42.1 26.4 28.9 12.8
        """,
    ),
    *_rows(
        "340M, 100B tokens of FineWeb",
        """
        DeltaNet [0,1]:  24.68 31.49 33.7 70.3 45.1 51.3 50.0 26.1 46.1 35.2 28.7 11.8
        DeltaNet [-1,1]: 24.54 31.15 34.0 69.9 44.6 51.9 50.0 24.4 45.8 37.2 33.1 6.6
        """,
    ),
    *_rows(
        "370M, 100B tokens of FineWeb",
        """
        Mamba [0,1]:  24.84 24.69 35.6 70.6 48.4 51.2 53.4 24.8 47.3 21.6 27.7 2.8
        Mamba [-1,1]: 25.02 24.71 36.2 70.5 47.8 53.3 54.7 26.7 48.2 20.9 24.8 2.5
        """,
    ),
    *_rows(
        "1.3B, 100B tokens of SlimPajama",
        """
        Transformer++:  16.85 13.44 48.9 70.8 49.6 53.6 56.0 26.5 50.9 66.6 31.5 27.4
        Mamba [0,1]:    17.06 13.89 46.2 72.2 40.1 54.1 59.0 28.2 50.0 41.4 35.2 6.2
        GLA [0,1]:      17.22 14.47 46.9 71.8 49.8 53.9 57.2 26.6 51.0 50.6 42.6 19.9
        DeltaNet [0,1]: 16.87 12.21 48.9 71.2 50.2 53.6 57.2 28.3 51.6 49.5 37.4 17.2
        """,
    ),
    *_rows(
        "1.3B, 100B tokens of FineWeb",
        """
        DeltaNet [0,1]:  18.54 14.32 43.5 73.7 56.2 56.9 58.2 29.9 53.1 49.1 35.1 8.6
        DeltaNet [-1,1]: 18.57 12.73 43.7 73.3 55.8 56.8 56.9 27.9 52.4 48.8 33.9 12.3
        """,
    ),
)
