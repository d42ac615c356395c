"""Write tables and documents as plain text: Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from numbers import Integral
from typing import Any

from statetrack.report.document import Cell, Document, Table

DOCUMENT_SCHEMA = 1  # of document.json
CODE = re.compile(r"`([^`]+)`")  # in paragraphs
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}",
    "≤": r"$\le$", "≥": r"$\ge$", "\u2212": "$-$", "→": r"$\to$", "λ": r"$\lambda$", "\n": " ",
}  # fmt: skip


def cell_text(cell: Cell) -> str:
    """Format a cell: numbers with three decimals, nothing for None.

    >>> [cell_text(cell) for cell in (0.5, 12345, None, "DeltaNet", -1e-9)]
    ['0.500', '12,345', '', 'DeltaNet', '0.000']
    """
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Integral):
        return f"{cell:,}"
    return f"{cell:.3f}".replace("-0.000", "0.000")


def numeric_columns(table: Table) -> list[bool]:
    """Say for each column whether it has numbers, which are right-aligned."""
    columns = [[row[i] for row in table.rows] for i in range(len(table.columns))]
    return [
        any(cell is not None for cell in column)
        and not any(isinstance(cell, str) for cell in column)
        for column in columns
    ]


def fact_text(value: Any) -> str:
    """Format a fact: numbers, or what a mapping or list contains."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {fact_text(v)}" for name, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(fact_text, value))
    if isinstance(value, float):
        return f"{value:,.1f}"
    return "" if value is None else f"{value:,}" if type(value) is int else str(value)


# -- CSV -----------------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """Return a table as CSV, numbers with three decimals and without separators."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow(
            [str(cell) if isinstance(cell, Integral) else cell_text(cell) for cell in row]
        )
    return out.getvalue()


# -- LaTeX ---------------------------------------------------------------------------------------


def to_latex(table: Table, name: str) -> str:
    r"""Return a table as a LaTeX float; it needs \usepackage{booktabs}."""
    align = "".join("r" if numeric else "l" for numeric in numeric_columns(table))
    rows = [[latex_text(cell_text(cell)) for cell in row] for row in table.rows]
    caption = latex_text(table.title) + (f". {latex_text(table.note)}" if table.note else "")
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{caption}}}",
        rf"  \label{{tab:{name}}}",
        rf"  \begin{{tabular}}{{{align}}}",
        r"    \toprule",
        f"    {' & '.join(map(latex_text, table.columns))} \\\\",
        r"    \midrule",
        *(f"    {' & '.join(row)} \\\\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    """Escape a text for LaTeX, including brackets: [ after the end of a row starts an option."""
    return "".join(LATEX.get(character, character) for character in text)


# -- Markdown ------------------------------------------------------------------------------------


def to_markdown(document: Document, tables: list[str], figures: list[str]) -> str:
    """Return a document as Markdown.

    Args:
        document: the document.
        tables: the names of the tables' files, without their endings.
        figures: those of the figures' files.
    """
    parts = [f"# {markdown_text(document.title)}", *map(markdown_paragraph, document.summary)]
    for table, name in zip(document.tables, tables, strict=True):
        parts += [f"## {markdown_text(table.title)}", markdown_table(table)]
        parts += [markdown_paragraph(table.note)] if table.note else []
        parts.append(f"As [CSV]({name}.csv) and [LaTeX]({name}.tex).")
    for figure, name in zip(document.figures, figures, strict=True):
        title = markdown_text(figure.title)
        parts += [f"## {title}", f"![{title}]({name}.png)"]
        parts += [markdown_paragraph(figure.note)] if figure.note else []
    if document.notes:
        notes = "\n".join(f"- {markdown_paragraph(note)}" for note in document.notes)
        parts += ["## Notes", notes]
    if document.facts:
        rows = [(name, fact_text(value)) for name, value in document.facts.items()]
        table = Table("", ("made with", ""), rows)
        parts += ["## How it was made", markdown_table(table)]
    parts.append("All numbers and configurations are in [document.json](document.json).")
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """Return the rows of a table in GitHub's Markdown."""
    rule = ["---:" if numeric else "---" for numeric in numeric_columns(table)]
    head = [markdown_text(name) for name in table.columns]
    rows = [[markdown_text(cell_text(cell)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def markdown_paragraph(text: str) -> str:
    """Escape a paragraph for Markdown, except for text between backticks."""
    parts = CODE.split(text)
    return "".join(f"`{t}`" if i % 2 else markdown_text(t) for i, t in enumerate(parts))


def markdown_text(text: str) -> str:
    """Escape a text for Markdown, on one line."""
    text = re.sub(r"([\\`*|<])", r"\\\1", " ".join(text.split()) if "\n" in text else text)
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)  # within a word it means itself
    return re.sub(r"\](?=[(\[:])", r"\\]", text)  # else a link


# -- JSON ----------------------------------------------------------------------------------------


DIGITS = {"tables": 6, "figures": 4}  # of numbers in document.json that are not whole
EXACT_DIGITS = 17  # tell any two floats apart


def to_json(document: Document) -> str:
    """Return the content of document.json."""
    text = json.dumps(to_plain(document), indent=1, allow_nan=False)
    # a list of numbers or texts on one line: the newlines of a text are escaped
    return re.sub(r"\[\n[^\[\]{}]*\n *\]", lambda m: re.sub(r"\n *", " ", m[0]), text) + "\n"


def to_plain(document: Document) -> dict[str, Any]:
    """Return the data of a document as plain values.

    Whole numbers are exact. Others have six digits in tables and four in figures, or as many more
    as keep them from becoming whole. Infinite ones and NaN are None.
    """
    plain = json.loads(json.dumps(asdict(document), default=lambda array: array.tolist()))
    rounded = {name: _round(plain[name], digits) for name, digits in DIGITS.items()}
    return {"schema": DOCUMENT_SCHEMA, **plain, **rounded}


def _round(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {name: _round(v, digits) for name, v in value.items()}
    if isinstance(value, list):
        return [_round(v, digits) for v in value]
    if isinstance(value, float):
        return _round_number(value, digits) if math.isfinite(value) else None
    return value


def _round_number(value: float, digits: int) -> float:
    if value.is_integer():
        return value
    candidates = (float(f"{value:.{n}g}") for n in range(digits, EXACT_DIGITS))
    return next((found for found in candidates if not found.is_integer()), value)
