"""The content of a report: tables, figures and facts, independent of how they are rendered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | float | int | None  # None: not measured, an empty cell


@dataclass(frozen=True)
class Table:
    """A table; numbers are kept as numbers and formatted when rendered (three decimals)."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    name: str = ""  # of its files (CSV, LaTeX); from the title if empty


@dataclass(frozen=True)
class Series:
    """A line of a figure, with an interval if there is one."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None  # 95 % interval over seeds
    high: Sequence[float] | None = None
    group: str = ""  # series of one group share a colour, e.g. the seeds of a model
    dashed: bool = False
    faint: bool = False  # drawn thin: single seeds beside their median


@dataclass(frozen=True)
class HeatMap:
    """Numbers by row and column, drawn as colours; None is left blank."""

    rows: Sequence[str]  # their names, the first one on top
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    label: str  # of the colours
    value_range: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Figure:
    """Lines over one pair of axes, a heat map, or several such panels."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    marks: Sequence[tuple[float, str]] = ()  # vertical lines, e.g. (40, "training length")
    y_range: tuple[float, float] | None = None
    raw: Sequence[Series] = ()  # the same lines on the raw axis, if `series` are scaled
    raw_label: str = ""
    note: str = ""
    name: str = ""  # of its files; from the title if empty
    points: bool = False  # a scatter in the complex plane, with the unit circle
    rows: bool = False  # a scatter with a row for each series, which has no y-axis
    heat: HeatMap | None = None  # drawn instead of lines
    panels: Sequence[Figure] = ()  # drawn side by side, with one legend, instead of lines

    @property
    def scatter(self) -> bool:
        """Whether series are points instead of lines."""
        return self.points or self.rows


@dataclass(frozen=True)
class Document:
    """The report of an experiment: its findings, tables, figures, settings and environment."""

    name: str
    title: str
    summary: Sequence[str] = ()  # paragraphs: verdict first
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()  # what differs from the paper, every cut of the budget
    facts: dict[str, Any] = field(default_factory=dict)  # command, versions, hardware, CPU seconds
    configs: dict[str, Any] = field(default_factory=dict)  # run configurations by name
